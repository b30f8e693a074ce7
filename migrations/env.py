"""What Alembic runs: with a connection from store.schema, or by hand with `alembic -x url=sqlite:///FILE`.

Foreign keys are off while tables are rebuilt: SQLite changes a table by copying and dropping it, and a drop
with foreign keys on would delete every row that refers to it. They are checked before the commit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import sqlalchemy as sa
from alembic import context
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from sqlalchemy.engine import Connection

from slicemgr.store.engine import make_engine
from slicemgr.store.tables import UtcTime, metadata


def run(connection: Connection) -> None:
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        _pragma(connection, "foreign_keys=OFF")
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        transactional_ddl=True,
        compare_type=True,
        compare_server_default=_default_differs,
        render_item=_render,
    )
    try:
        with context.begin_transaction():
            context.run_migrations()
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall() if sqlite else []
            if broken:
                raise RuntimeError(f"a migration broke foreign keys: {broken[:5]}")
    finally:
        if sqlite:
            _pragma(connection, "foreign_keys=ON")


def _default_differs(
    migration: MigrationContext,
    found: sa.Column[Any],
    wanted: sa.Column[Any],
    found_default: str | None,
    wanted_default: object,
    wanted_text: str | None,
) -> bool | None:
    """None: Alembic's own comparison. It asks PostgreSQL, which cannot compare JSON: that is compared as text."""
    if migration.dialect.name != "postgresql" or not isinstance(wanted.type, sa.JSON):
        return None
    return (found_default or "").removesuffix("::json") != (wanted_text or "")


def _render(kind: str, value: object, autogen: AutogenContext) -> str | Literal[False]:
    """Migrations name no type of ours: those may change later, what a migration does may not."""
    return "sa.DateTime()" if isinstance(value, UtcTime) else False


def _pragma(connection: Connection, text: str) -> None:
    """Outside of a transaction, where alone it has an effect."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA {text}")
    cursor.close()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = make_engine(context.get_x_argument(as_dictionary=True)["url"], timedelta(seconds=30))
    with engine.connect() as fresh:
        run(fresh)
    engine.dispose()

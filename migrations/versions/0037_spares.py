"""spares: slivers without a slice"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_TEXTS = ("sliver", "type", "image", "boot", "machine", "init")


def upgrade() -> None:
    _change_slice(nullable=True)
    with op.batch_alter_table("slices") as slices:
        slices.add_column(sa.Column("warm", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "spares",
        *(sa.Column(name, sa.Text(), nullable=False) for name in _TEXTS),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], name=op.f("fk_spares_sliver"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sliver", name=op.f("pk_spares")),
    )


def downgrade() -> None:
    """An earlier version knows no sliver without a slice: the agent then lists what is left of it as garbage."""
    op.drop_table("spares")
    with op.batch_alter_table("slices") as slices:
        slices.drop_column("warm")
    for table in ("ports", "consoles", "sliver_snapshots"):
        column = "serial" if table == "ports" else "id"
        op.execute(f"DELETE FROM {table} WHERE sliver IN (SELECT {column} FROM slivers WHERE slice IS NULL)")
    op.execute("DELETE FROM slivers WHERE slice IS NULL")
    _change_slice(nullable=False)


def _change_slice(*, nullable: bool) -> None:
    """SQLite copies the table for it: the last serial that was given stays, so that none is given again."""
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    of_slivers = "FROM sqlite_sequence WHERE name = 'slivers'"
    last = connection.scalar(sa.text(f"SELECT seq {of_slivers}")) if sqlite else None
    with op.batch_alter_table("slivers", table_kwargs={"sqlite_autoincrement": True}) as slivers:
        slivers.alter_column("slice", existing_type=sa.Text(), nullable=nullable)
    if last is not None:
        connection.execute(sa.text(f"DELETE {of_slivers}"))
        connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('slivers', :last)"), {"last": last})

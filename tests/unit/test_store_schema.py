"""Migrations with rows in every table, and the refusal of a database that is not of this version."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import check_schema
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from bare_service import SHA, Service, config_in, empty_database, fresh_database

import slicemgr.store
from slicemgr import __version__, model
from slicemgr.config import PACKAGE, Config, StoreConfig, WebConfig, parse_duration
from slicemgr.service.accounts import authentication
from slicemgr.store import Store, StoreError, schema, tables
from slicemgr.store.engine import make_engine
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("both_stores")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("50ms")))


@pytest.fixture
def database(config: Config) -> Iterator[Store]:
    """A database of the present schema, without a check of its version."""
    fresh_database(config)
    with Store(make_engine(config.store_url, timedelta(seconds=5))) as store:
        yield store


def run(store: Store, *statements: str) -> None:
    with store.write() as c:
        for statement in statements:
            c.exec_driver_sql(statement)


def refusal(config: Config) -> str:
    with pytest.raises(StoreError) as caught:
        slicemgr.store.open(config)
    return str(caught.value)


def test_revisions_are_those_of_the_migrations() -> None:
    script = ScriptDirectory(str(PACKAGE / "migrations"))
    assert tuple(one.revision for one in reversed(list(script.walk_revisions()))) == schema.REVISIONS


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Service]:
    """A service with rows in every table."""
    with Service(tmp_path) as service:
        service.fill()
        yield service


def test_rows_in_every_table_survive_an_upgrade_that_does_nothing(full: Service) -> None:
    before = full.dump()
    assert all(before.values()), "each table must have rows for this to mean anything"
    schema.upgrade(full.config.store_url)
    assert full.dump() == before


def test_down_and_up_again_with_rows_in_every_table(full: Service, database: Store) -> None:
    full.store.close()
    for revision in (*reversed(schema.REVISIONS[:-1]), "base"):
        schema.downgrade(full.config.store_url, revision)
    with database.read() as c:
        assert sa.inspect(c).get_table_names() == ["alembic_version"]
    for revision in schema.REVISIONS:
        schema.upgrade(full.config.store_url, revision)
    with slicemgr.store.open(full.config) as store, store.read() as c:
        assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN


def test_empty_database_wants_an_upgrade(config: Config) -> None:
    path = config.node.state_dir / "db" / "slicemgr.db"
    path.parent.mkdir(parents=True)
    path.touch()
    empty_database(config)
    assert "slicemgr db upgrade" in refusal(config)
    schema.upgrade(config.store_url)
    slicemgr.store.open(config).close()


def test_older_schema_wants_an_upgrade(config: Config, database: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9998"))
    monkeypatch.setattr(schema, "HEAD", "9998")
    message = refusal(config)
    assert "older version" in message
    assert "slicemgr db upgrade" in message


def test_newer_schema_says_who_wrote_it(config: Config, database: Store) -> None:
    run(
        database,
        "UPDATE alembic_version SET version_num = '9999'",
        "UPDATE about SET value = '7.5' WHERE key = 'version'",
    )
    message = refusal(config)
    assert "7.5" in message
    assert __version__ in message
    with pytest.raises(StoreError, match=r"7\.5"):
        schema.upgrade(config.store_url)


def test_a_newer_schema_without_a_writers_name(config: Config, database: Store) -> None:
    run(database, "UPDATE alembic_version SET version_num = '9999'", "DROP TABLE about")
    assert "newer version (schema 9999)" in refusal(config)


def test_another_programs_tables_are_left_alone(config: Config, database: Store) -> None:
    run(
        database,
        "DROP TABLE alembic_version",
        "INSERT INTO projects (name, created_at) VALUES ('theirs', '2020-01-01')",
    )
    with pytest.raises(StoreError, match="belongs to another program: it has a table 'about'"):
        schema.upgrade(config.store_url)
    with database.read() as c:
        assert "theirs" in set(c.scalars(sa.select(tables.projects.c.name)))


def test_locked_database(config: Config, database: Store) -> None:
    with slicemgr.store.open(config) as store, ExitStack() as other:
        other.enter_context(database.write())
        with pytest.raises(StoreError, match="locked"), store.write():
            pass
        with store.read() as c:  # a writer does not block readers
            assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN
        other.close()
        with store.write() as c:
            c.execute(tables.projects.insert().values(name="p", created_at=utcnow()))


def test_more_readers_than_connections_wait_for_one_another(tmp_path: Path) -> None:
    config = config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("50ms")), web=WebConfig(threads=1))
    fresh_database(config)
    with slicemgr.store.open(config) as store:
        held = [store.engine.connect() for _ in range(9)]
        with pytest.raises(StoreError, match="overloaded"), store.read():
            pass
        for one in held:
            one.close()
        with store.read() as c:
            assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN


def test_the_tables_are_those_of_the_code(config: Config, database: Store) -> None:
    assert check_schema.difference(config.store_url) == ""
    run(database, "DROP INDEX ix_slices_image")
    assert "ix_slices_image" in check_schema.difference(config.store_url)


def test_another_default_is_a_difference(config: Config, database: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of JSON too, which PostgreSQL itself cannot compare."""
    monkeypatch.setattr(tables.images.c.boot, "server_default", sa.DefaultClause(sa.text("'[]'")))
    assert "boot" in check_schema.difference(config.store_url)


def test_a_migration_that_breaks_leaves_all_as_it_was(
    config: Config, database: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, last = tmp_path / "package", schema.HEAD
    shutil.copytree(PACKAGE / "migrations", package / "migrations")
    text = f'revision = "9998"\ndown_revision = "{schema.HEAD}"\n\n\ndef upgrade() -> None:\n'
    text += '    from alembic import op\n\n    op.drop_table("events")\n    raise ValueError("half way")\n'
    (package / "migrations/versions/9998_breaks.py").write_text(text)
    monkeypatch.setattr(schema, "PACKAGE", package)
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9998"))
    monkeypatch.setattr(schema, "HEAD", "9998")
    with pytest.raises(ValueError, match="half way"):
        schema.upgrade(config.store_url)
    with database.read() as c:
        assert c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == last
        assert c.exec_driver_sql("SELECT count(*) FROM events").scalar() == 0


def test_the_built_in_rows_come_once(config: Config, database: Store) -> None:
    schema.upgrade(config.store_url)
    with database.read() as c:
        assert list(c.scalars(sa.select(tables.users.c.name))) == [schema.ADMIN]
        assert list(c.scalars(sa.select(tables.projects.c.name))) == [model.DEFAULT_PROJECT]


def test_a_current_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent and the link of a host that has joined may use it. The control is a database of another version."""
    monkeypatch.setattr(schema, "_LOCK_TIMEOUT", timedelta(seconds=0.1))
    url = f"sqlite:///{tmp_path}/mirror.db"
    schema.upgrade(url)
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as other, other:
        other.execute("update users set admin = 1")
        schema.upgrade(url)
        monkeypatch.setattr(schema, "__version__", "another")
        with pytest.raises(StoreError):
            schema.upgrade(url)


def test_nothing_waits_for_the_lock_of_a_current_database(
    config: Config, database: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Web and agent start while others write. The control is a database of another version."""
    monkeypatch.setattr(schema, "_LOCK_TIMEOUT", timedelta(seconds=0.1))
    with database.write():
        schema.upgrade(config.store_url)
        monkeypatch.setattr(schema, "__version__", "another")
        with pytest.raises(StoreError, match="locked"):
            schema.upgrade(config.store_url)


def test_people_come_to_a_testbed_that_has_slices(full: Service) -> None:
    """From the schema before users and projects: the admin's token stays valid, serials are not reused."""
    token = full.token()
    schema.downgrade(full.config.store_url, "0004")
    schema.upgrade(full.config.store_url)
    assert authentication.authenticate(full.store, token).credential
    with full.store.read() as c:
        assert set(c.scalars(sa.select(tables.operations.c.project))) == {model.DEFAULT_PROJECT}
        if c.dialect.name == "sqlite":
            for name in ("slivers", "events"):
                made = c.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE name = '{name}'").scalar_one()
                assert "AUTOINCREMENT" in made
    assert full.create("after")


def test_images_that_are_ready_are_on_the_nodes_there_are(full: Service) -> None:
    """But not on those that have joined by a command: they had none before."""
    full.add_image("cd" * 32, "deleted", model.ImageState.DELETING)
    with full.store.write() as c:
        c.execute(tables.images.update().values(base_size=7))
    schema.downgrade(full.config.store_url, "0025")
    schema.upgrade(full.config.store_url)
    with full.store.read() as c:
        x = tables.image_nodes.c
        assert list(c.execute(sa.select(x.image, x.node, x.state, x.base_size))) == [(SHA, "node1", "ready", 7)]

"""Migrations with rows in every table, and the refusal of a database that is not of this version."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import check_schema
import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from bare_service import ADMIN, Service, config_in, fresh_database

import slicemgr.store
from slicemgr import __version__, model
from slicemgr.config import PACKAGE, Config, StoreConfig, WebConfig, parse_duration
from slicemgr.model import OperationState
from slicemgr.service import consoles, people
from slicemgr.store import StoreError, schema, tables, work
from slicemgr.store.updates import utcnow


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("50ms")))


@pytest.fixture
def database(config: Config) -> Path:
    return fresh_database(config)


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
        service.token()
        operation = service.create(count=2)
        sliver = service.rows()[0].sliver.id
        service.record(work.StepSeen(operation, sliver, "root", OperationState.RUNNING))
        with service.store.write() as c:
            now = utcnow()
            c.execute(tables.clock.insert().values(id=1, seen_at=now, trusted_from=now))
            mine = {"user": schema.ADMIN, "created_at": now}
            c.execute(tables.members.insert().values(**mine, project="default", role="pi"))
            c.execute(tables.quotas.insert().values(project="default", level="quota", slices=3))
            c.execute(tables.ssh_keys.insert().values(**mine, id="1", line="ssh-ed25519 AAAA"))
            ends = {**mine, "hash": "h", "expires_at": now}
            c.execute(tables.sessions.insert().values(**ends, id="1", used_at=now))
            c.execute(tables.invitations.insert().values(**ends, invited_by=schema.ADMIN))
            asked = {**mine, "id": "1", "project": "default", "name": "exp", "body": {}, "reason": "more"}
            c.execute(tables.requests.insert().values(**asked, state="waiting"))
        consoles.ask(service.store, "exp", 0, ADMIN)
        yield service


def test_rows_in_every_table_survive_an_upgrade_that_does_nothing(full: Service) -> None:
    before = full.dump()
    assert all(before.values()), "each table must have rows for this to mean anything"
    schema.upgrade(full.config.store_url)
    assert full.dump() == before


def test_down_and_up_again_with_rows_in_every_table(full: Service) -> None:
    full.store.close()
    schema.downgrade(full.config.store_url, "base")
    with sqlite3.connect(full.database) as raw:
        left = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    raw.close()
    assert left == {"alembic_version", "sqlite_sequence"}
    schema.upgrade(full.config.store_url)
    with slicemgr.store.open(full.config) as store, store.read() as c:
        assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN


REBUILD = f"""
import sqlalchemy as sa
from alembic import op
revision, down_revision = "9998", "{schema.HEAD}"
def upgrade():
    with op.batch_alter_table("slices") as batch:
        batch.alter_column("name", nullable=True)
def downgrade():
    with op.batch_alter_table("slices") as batch:
        batch.alter_column("name", nullable=False)
"""


@pytest.mark.parametrize("foreign_keys_off", [True, False])
def test_rebuilding_a_parent_table_keeps_its_children(
    full: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign_keys_off: bool
) -> None:
    """SQLite changes a column by copying and dropping the table; with foreign keys on, all slivers go with it."""
    migrations = tmp_path / "package" / "migrations"
    shutil.copytree(PACKAGE / "migrations", migrations)
    environment = (PACKAGE / "migrations" / "env.py").read_text()
    weakened = environment.replace("foreign_keys=OFF", "foreign_keys=ON")
    (migrations / "env.py").write_text(environment if foreign_keys_off else weakened)
    for one in (PACKAGE / "migrations" / "versions").glob("0*.py"):
        (migrations / "versions" / one.name).write_text(one.read_text())
    (migrations / "versions" / "9998_rebuild.py").write_text(REBUILD)
    monkeypatch.setattr(schema, "PACKAGE", migrations.parent)
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9998"))
    before = {name: full.count(name) for name in ("slivers", "ports")}
    schema.upgrade(full.config.store_url)
    after = {name: full.count(name) for name in before}
    assert (after == before) is foreign_keys_off


def test_no_database_is_said_and_none_is_made(config: Config) -> None:
    assert "cannot be opened" in refusal(config)
    assert not (config.node.state_dir / "db").exists()


def test_empty_database_wants_an_upgrade(config: Config) -> None:
    path = config.node.state_dir / "db" / "slicemgr.db"
    path.parent.mkdir(parents=True)
    path.touch()
    assert "slicemgr db upgrade" in refusal(config)


def test_older_schema_wants_an_upgrade(config: Config, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9998"))
    monkeypatch.setattr(schema, "HEAD", "9998")
    message = refusal(config)
    assert "older version" in message
    assert "slicemgr db upgrade" in message


def test_newer_schema_says_who_wrote_it(config: Config, database: Path) -> None:
    with sqlite3.connect(database) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.execute("UPDATE about SET value = '7.5' WHERE key = 'version'")
    raw.close()
    message = refusal(config)
    assert "7.5" in message
    assert __version__ in message
    with pytest.raises(StoreError, match=r"7\.5"):
        schema.upgrade(config.store_url)


def test_a_file_that_is_no_database(config: Config, database: Path) -> None:
    database.write_bytes(b"this is a text, not a database\n" * 100)
    assert "not a database" in refusal(config)


def test_locked_database(config: Config, database: Path) -> None:
    with slicemgr.store.open(config) as store:
        other = sqlite3.connect(database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"), store.write():
            pass
        with store.read() as c:  # a writer is in nobody's way who reads
            assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN
        other.execute("ROLLBACK")
        other.close()
        with store.write() as c:
            c.execute(tables.projects.insert().values(name="p", created_at=utcnow()))


def test_read_only_database(tmp_path: Path, database: Path) -> None:
    config = config_in(tmp_path, store=StoreConfig(url=f"sqlite:///file:{database}?mode=ro&uri=true"))
    with slicemgr.store.open(config) as store, pytest.raises(StoreError, match="read-only"), store.write() as c:
        c.execute(tables.projects.delete())


WRITE = """
import os, sys
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
import slicemgr.store
from slicemgr.config import load
try:
    with slicemgr.store.open(load(Path(sys.argv[1]))) as store, store.write() as c:
        c.exec_driver_sql("DELETE FROM projects")
except slicemgr.store.StoreError as error:
    print(error)
"""


def test_database_of_another_user(config: Config, database: Path, tmp_path: Path) -> None:
    """As the web process would meet it if its owner were wrong."""
    if os.geteuid() != 0:
        pytest.fail("the suite runs as root")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[node]\nstate_dir = "{config.node.state_dir}"\n')
    settings.chmod(0o644)
    database.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(settings)], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert "read-only" in done.stdout or "cannot be opened" in done.stdout, done.stderr


def test_more_readers_than_connections_wait_for_one_another(tmp_path: Path) -> None:
    config = config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("50ms")), web=WebConfig(threads=1))
    fresh_database(config)
    with slicemgr.store.open(config) as store:
        held = [store.engine.connect() for _ in range(9)]
        with pytest.raises(StoreError, match="too much to do"), store.read():
            pass
        for one in held:
            one.close()
        with store.read() as c:
            assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN


def test_the_tables_are_those_of_the_code(database: Path) -> None:
    url = f"sqlite:///{database}"
    assert check_schema.difference(url) == ""
    with sqlite3.connect(database) as connection:
        connection.execute("DROP INDEX ix_slices_image")
    connection.close()
    assert "ix_slices_image" in check_schema.difference(url)


def test_a_migration_that_breaks_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, last = tmp_path / "package", schema.HEAD
    shutil.copytree(PACKAGE / "migrations", package / "migrations")
    text = f'revision = "9998"\ndown_revision = "{schema.HEAD}"\n\n\ndef upgrade() -> None:\n'
    text += '    from alembic import op\n\n    op.drop_table("events")\n    raise ValueError("half way")\n'
    (package / "migrations/versions/9998_breaks.py").write_text(text)
    url = f"sqlite:///{tmp_path}/x.db"
    schema.upgrade(url)
    monkeypatch.setattr(schema, "PACKAGE", package)
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9998"))
    monkeypatch.setattr(schema, "HEAD", "9998")
    with pytest.raises(ValueError, match="half way"):
        schema.upgrade(url)
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(last,)]
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(0,)]


def test_the_built_in_rows_come_once(config: Config, database: Path) -> None:
    schema.upgrade(config.store_url)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM users").fetchall() == [(schema.ADMIN,)]
        assert connection.execute("SELECT name FROM projects").fetchall() == [(model.DEFAULT_PROJECT,)]


def test_people_come_to_a_testbed_that_has_slices(full: Service) -> None:
    """From the schema before people and projects: the admin's token works on, serials are not given twice."""
    token = full.token()
    schema.downgrade(full.config.store_url, "0004")
    schema.upgrade(full.config.store_url)
    assert people.authenticate(full.store, token).credential
    with full.store.read() as c:
        assert set(c.scalars(sa.select(tables.operations.c.project))) == {model.DEFAULT_PROJECT}
        for name in ("slivers", "events"):
            made = c.exec_driver_sql(f"SELECT sql FROM sqlite_master WHERE name = '{name}'").scalar_one()
            assert "AUTOINCREMENT" in made
    assert full.create("after")

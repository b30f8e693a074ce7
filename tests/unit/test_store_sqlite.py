"""Failures of an SQLite file, and of its migrations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import Service, config_in, fresh_database

import slicemgr.store
from slicemgr.config import PACKAGE, Config, StoreConfig, parse_duration
from slicemgr.store import StoreError, schema, tables


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("50ms")))


@pytest.fixture
def database(config: Config) -> Path:
    return fresh_database(config)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Service]:
    """A service with rows in every table."""
    with Service(tmp_path) as service:
        service.fill()
        yield service


def refusal(config: Config) -> str:
    with pytest.raises(StoreError) as caught:
        slicemgr.store.open(config)
    return str(caught.value)


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
    monkeypatch.setattr(schema, "HEAD", "9998")
    before = {name: full.count(name) for name in ("slivers", "ports")}
    schema.upgrade(full.config.store_url)
    after = {name: full.count(name) for name in before}
    assert (after == before) is foreign_keys_off


def test_no_database_is_said_and_none_is_made(config: Config) -> None:
    assert "cannot be opened" in refusal(config)
    assert not (config.node.state_dir / "db").exists()


def test_a_file_that_is_no_database(config: Config, database: Path) -> None:
    database.write_bytes(b"this is a text, not a database\n" * 100)
    assert "not a database" in refusal(config)


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

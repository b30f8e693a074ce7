"""Migrations: up, down and up again with rows in the tables; other versions are told apart."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import check_schema
import pytest
import sqlalchemy as sa
from world import ADMIN, request, service, settings

from slicemgr import store as stores
from slicemgr.config import PACKAGE
from slicemgr.service import slices, specs
from slicemgr.store import StoreError, schema
from slicemgr.store import tables as t


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in tables}
    connection.close()
    return found


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    config = settings(tmp_path)
    with service(config) as store:
        slices.create(store, config, specs.slice_spec(request(count=3), config), ADMIN)
    return Path(config.store_url.removeprefix("sqlite:///"))


def test_the_tables_are_those_of_the_code(filled: Path) -> None:
    url = f"sqlite:///{filled}"
    assert check_schema.difference(url) == ""
    with sqlite3.connect(filled) as connection:
        connection.execute("DROP INDEX ix_slices_image")
    connection.close()
    assert "ix_slices_image" in check_schema.difference(url)


def test_an_upgrade_of_the_same_version_changes_no_row(filled: Path) -> None:
    before = contents(filled)
    assert len(before["slivers"]) == 3
    schema.upgrade(f"sqlite:///{filled}")
    assert contents(filled) == before


def test_down_and_up_again_with_rows(filled: Path) -> None:
    url = f"sqlite:///{filled}"
    schema.downgrade(url, "base")
    assert set(contents(filled)) <= {"alembic_version", "sqlite_sequence"}
    schema.upgrade(url)
    found = contents(filled)
    assert found["slivers"] == [] and len(found["users"]) == len(found["projects"]) == 1
    assert set(t.metadata.tables) <= set(found)
    assert check_schema.difference(url) == ""


def test_a_migration_that_breaks_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    shutil.copytree(PACKAGE / "migrations", package / "migrations")
    text = 'revision = "0002"\ndown_revision = "0001"\n\n\ndef upgrade() -> None:\n'
    text += '    from alembic import op\n\n    op.drop_table("events")\n    raise ValueError("half way")\n'
    (package / "migrations/versions/0002_breaks.py").write_text(text)
    url = f"sqlite:///{tmp_path}/x.db"
    schema.upgrade(url, "0001")
    before = contents(tmp_path / "x.db")
    monkeypatch.setattr(schema, "PACKAGE", package)
    with pytest.raises(ValueError, match="half way"):
        schema.upgrade(url)
    assert contents(tmp_path / "x.db") == before


def set_revision(path: Path, revision: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


def test_a_newer_schema_is_refused(filled: Path, tmp_path: Path) -> None:
    set_revision(filled, "9999")
    before = contents(filled)
    with pytest.raises(StoreError, match=r"written by slicemgr .* \(schema 9999\)"):
        stores.open(settings(tmp_path))
    with pytest.raises(StoreError, match="schema 9999"):
        schema.upgrade(f"sqlite:///{filled}")
    with pytest.raises(StoreError, match="schema 9999"):
        schema.downgrade(f"sqlite:///{filled}", "base")
    assert contents(filled) == before


def test_an_older_schema_says_what_to_run(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9999"))
    monkeypatch.setattr(schema, "HEAD", "9999")
    with pytest.raises(StoreError, match="of an older version") as caught:
        stores.open(settings(tmp_path))
    assert "slicemgr db upgrade" in caught.value.hint


def test_no_tables_says_what_to_run(tmp_path: Path) -> None:
    config = settings(tmp_path)
    path = Path(config.store_url.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True)
    sqlite3.connect(path).close()
    with pytest.raises(StoreError, match="has no tables") as caught:
        stores.open(config)
    assert "slicemgr db upgrade" in caught.value.hint


def test_the_built_in_rows_come_once(filled: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{filled}")
    with engine.connect() as c:
        assert list(c.scalars(sa.select(t.users.c.name))) == [schema.ADMIN]
        assert list(c.scalars(sa.select(t.projects.c.name))) == [schema.DEFAULT_PROJECT]
    engine.dispose()

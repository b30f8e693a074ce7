"""A testbed moves from SQLite to PostgreSQL: completely or not at all, and sequences continue."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import Databases, Service, databases_on
from postgres_server import Server
from sqlalchemy.engine import make_url

import slicemgr.store
from slicemgr.agent.agent_lock import only_one
from slicemgr.config import Config, StoreConfig
from slicemgr.errors import Failed, Refused
from slicemgr.service.accounts import authentication
from slicemgr.service.slices import slices
from slicemgr.store import Store, StoreError, copy, pending, schema, tables
from slicemgr.store.engine import make_engine

SECOND = timedelta(seconds=1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """On SQLite, with rows in every table."""
    with Service(tmp_path) as made:
        made.fill()
        yield made


@pytest.fixture
def databases(postgres: Server, service: Service) -> Iterator[Databases]:
    with databases_on(postgres) as made:
        yield made


@pytest.fixture
def target(databases: Databases, tmp_path: Path) -> str:
    """An empty database."""
    url = databases.url(tmp_path)
    databases.make(url, "template0")
    return url


@pytest.fixture
def moved(target: str, service: Service) -> Config:
    """The settings that name the target."""
    return Config(node=service.config.node, store=StoreConfig(url=target))


def contents(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store.read() as c:
        return {
            table.name: sorted(tuple(row) for row in c.execute(table.select()))
            for table in tables.metadata.sorted_tables
        }


def is_empty(url: str) -> bool:
    with Store(make_engine(url, SECOND)) as store, store.read() as c:
        return not sa.inspect(c).get_table_names()


def test_every_row_of_every_table_arrives(service: Service, target: str, moved: Config) -> None:
    token = service.token()
    before = contents(service.store)
    assert all(before.values()), "each table must have rows for this to mean anything"
    counts = copy.copy(service.config.store_url, target, SECOND)
    assert counts == {name: len(rows) for name, rows in before.items()}
    with slicemgr.store.open(moved) as store:
        assert contents(store) == before
        assert authentication.authenticate(store, token).admin
    assert contents(service.store) == before


def test_the_moved_testbed_works_on(service: Service, target: str, moved: Config) -> None:
    copy.copy(service.config.store_url, target, SECOND)
    with slicemgr.store.open(moved) as store:
        slices.create(
            store, moved, slices.Draft(service.request("after")), authentication.authenticate(store, service.token())
        )
        with store.read() as c:
            rows = [row.sliver for row in pending.slivers(c, "node1") if not row.sliver.spare]
        assert [one.slice_name for one in rows] == ["exp", "exp", "after"]
        assert len({one.address for one in rows}) == len({one.ports.first for one in rows}) == 3


def test_numbers_of_rows_that_are_gone_are_not_given_again(service: Service, target: str, moved: Config) -> None:
    service.create("gone", count=3)
    gone = [row.sliver for row in service.rows() if row.sliver.slice_name == "gone"]
    service.record(*(pending.SliverGone(one.id) for one in gone))
    with service.store.write() as c:
        given = max(c.scalars(sa.select(tables.events.c.id)))
        c.execute(tables.events.delete().where(tables.events.c.id == given))
    copy.copy(service.config.store_url, target, SECOND)
    with slicemgr.store.open(moved) as store:
        admin = authentication.authenticate(store, service.token())
        slices.create(store, moved, slices.Draft(service.request("after")), admin)
        with store.read() as c:
            serial = max(row.sliver.serial for row in pending.slivers(c, "node1"))
            event = max(c.scalars(sa.select(tables.events.c.id)))
    assert (serial, event) == (max(one.serial for one in gone) + 1, given + 1)


def test_a_full_target_is_left_alone(service: Service, target: str) -> None:
    schema.upgrade(target)
    with Store(make_engine(target, SECOND)) as store:
        before = contents(store)
        with pytest.raises(Refused, match="--to: the database is not empty") as caught:
            copy.copy(service.config.store_url, target, SECOND)
        assert "createdb" in caught.value.hint
        assert contents(store) == before


def test_a_target_is_checked_without_a_change_and_can_be_emptied_again(service: Service, target: str) -> None:
    copy.check_target(target, SECOND)
    assert is_empty(target)
    copy.copy(service.config.store_url, target, SECOND)
    with pytest.raises(Refused, match="the database is not empty"):
        copy.check_target(target, SECOND)
    copy.empty(target, SECOND)
    assert is_empty(target)
    copy.check_target(target, SECOND)
    assert copy.copy(service.config.store_url, target, SECOND)["slices"] > 0


def test_a_target_of_another_owner_is_refused(target: str, databases: Databases, postgres: Server) -> None:
    """As one that `createdb` made without --owner."""
    postgres.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    try:
        url = make_url(target)
        other = url.set(username="guest", password="guest").render_as_string(hide_password=False)
        with pytest.raises(Refused, match="cannot create tables"):
            copy.check_target(other, SECOND)
    finally:
        postgres.sql("DROP ROLE guest")


def test_a_row_that_does_not_fit_undoes_everything(service: Service, target: str) -> None:
    """SQLite keeps any value in any column."""
    with service.store.write() as c:
        c.exec_driver_sql("UPDATE slivers SET memory = 'much'")
    with pytest.raises(Failed, match="a row of slivers does not fit") as caught:
        copy.copy(service.config.store_url, target, SECOND)
    assert caught.value.hint == "nothing was copied"
    assert is_empty(target)


def test_rows_that_are_lost_on_the_way_are_noticed(
    service: Service, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of the target discards rows: no statement fails, and no row arrives."""
    original = schema.run_migrations

    def migrate(connection: sa.Connection) -> None:
        original(connection)
        connection.exec_driver_sql("CREATE RULE lose AS ON INSERT TO events DO INSTEAD NOTHING")

    monkeypatch.setattr(schema, "run_migrations", migrate)
    with pytest.raises(Failed, match=r"of \d+ rows of events, 0 arrived"):
        copy.copy(service.config.store_url, target, SECOND)
    assert is_empty(target)


def test_nobody_writes_meanwhile(service: Service, target: str) -> None:
    with service.store.write(), pytest.raises(StoreError, match="locked"):
        copy.copy(service.config.store_url, target, timedelta(milliseconds=50))
    assert is_empty(target)


@pytest.mark.parametrize(
    ("source", "to", "words"),
    [
        ("postgresql://u:secret@h/d", "postgresql://u:secret@h/d", "store.url: is not SQLite"),
        ("sqlite:////nowhere/x.db", "sqlite:////nowhere/y.db", "--to: is not PostgreSQL"),
        ("sqlite:////nowhere/x.db", "mysql://u:secret@h/d", "--to: names a database that is not supported"),
        ("sqlite:////nowhere/x.db", "secret", "--to: is not the URL of a database"),
    ],
)
def test_other_moves_are_refused(source: str, to: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        copy.copy(source, to, SECOND)
    assert "secret" not in str(caught.value)


def test_an_old_source_is_upgraded_first(service: Service, target: str) -> None:
    service.store.close()
    schema.downgrade(service.config.store_url, schema.REVISIONS[-2])
    with pytest.raises(StoreError, match="slicemgr db upgrade"):
        copy.copy(service.config.store_url, target, SECOND)
    assert is_empty(target)


@pytest.fixture
def settings(service: Service, tmp_path: Path) -> Path:
    path = tmp_path / "slicemgr.toml"
    place = service.config.node
    path.write_text(
        f'[node]\nstate_dir = "{place.state_dir}"\nrun_dir = "{place.run_dir}"\n[web]\nport = {free_port()}\n'
    )
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(settings: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from slicemgr.main import main; main()", "--config", str(settings), "db", "copy"]
    return subprocess.run(
        [*words, "--to", target], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_the_command_with_the_password_where_ps_does_not_show_it(
    service: Service, settings: Path, target: str, databases: Databases, moved: Config
) -> None:
    password = databases.server.password
    bare = target.partition("://")[0] + "://slicemgr@/" + target.partition("@/")[2]
    done = command(settings, bare, PGPASSWORD=password)
    assert done.returncode == 0, done.stderr
    told = {line.split()[1]: int(line.split()[0]) for line in done.stdout.splitlines()[:-1]}
    assert told == {name: len(rows) for name, rows in contents(service.store).items()}
    assert "store.url" in done.stdout.splitlines()[-1]
    with slicemgr.store.open(moved) as store:
        assert contents(store) == contents(service.store)


def test_not_while_an_agent_runs(service: Service, settings: Path, target: str) -> None:
    with only_one(service.config.node.run_dir / "agent.lock"):
        done = command(settings, target)
    assert done.returncode == 4
    assert "another agent runs on this node" in done.stderr
    assert is_empty(target)


def test_not_while_the_web_process_runs(service: Service, settings: Path, target: str) -> None:
    port = int(settings.read_text().rsplit("port = ", 1)[1])
    with socket.create_server(("127.0.0.1", port)):
        done = command(settings, target)
    assert done.returncode == 4
    assert "the web process still runs" in done.stderr
    assert is_empty(target)


def test_a_refused_password_is_not_repeated(service: Service, settings: Path, target: str) -> None:
    done = command(settings, target.replace("postgresql://slicemgr:", "postgresql://slicemgr:wr0ng"))
    assert done.returncode == 7
    assert "PostgreSQL refuses the user or the password" in done.stderr
    assert "wr0ng" not in done.stderr + done.stdout

"""Failures of a PostgreSQL server, reported as those of a file, without the password."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import Databases, config_in, databases_on, fresh_database
from postgres_server import Server
from sqlalchemy.engine import make_url
from web_process import until

import slicemgr.store
from slicemgr.agent.journal import Journal
from slicemgr.config import Config, StoreConfig, WebConfig, parse_duration
from slicemgr.errors import Refused
from slicemgr.hub import signer
from slicemgr.model import DEFAULT_PROJECT
from slicemgr.store import Store, StoreError, pending, postgresql, schema, tables
from slicemgr.store.engine import make_engine
from slicemgr.store.updates import utcnow
from slicemgr.store.url import parse

SECRET = "s3cr/t@:?%"
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def databases(postgres: Server) -> Iterator[Databases]:
    with databases_on(postgres) as made:
        yield made


@pytest.fixture
def config(databases: Databases, tmp_path: Path) -> Config:
    made = config_in(tmp_path, store=StoreConfig(lock_timeout=parse_duration("5s")))
    fresh_database(made)
    return made


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with slicemgr.store.open(config) as opened:
        yield opened


def name_of(config: Config) -> str:
    return str(make_url(config.store_url).database)


def at(url: str) -> Config:
    return Config(store=StoreConfig(url=url, lock_timeout=SECOND))


# where it is


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_name_it_is_the_same_driver(scheme: str) -> None:
    assert parse(f"{scheme}://u:p@h/d").drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (SECRET, "is not the URL of a database"),
        ("postgresql://u:s3cr@t@host/db", "has an @ or a / in its password"),
        ("postgresql://u:x@s3cr/t@host/db", "has an @ or a / in its password"),
        (f"postgresql://u:{SECRET}@host/db", "is not the URL of a database"),
        ("postgresql://u:x@host:s3cr/db", "is not the URL of a database"),
        ("mysql://u:s3cr@host/db", "names a database that is not supported"),
        ("postgresql+psycopg2://u:s3cr@host/db", "names a database that is not supported"),
        ("postgresql://u:s3cr@host", "names no database"),
    ],
)
def test_a_url_that_is_none_is_refused_and_not_repeated(url: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        slicemgr.store.open(at(url))
    assert caught.value.field == "store.url"
    assert "s3cr" not in "".join(traceback.format_exception(caught.value))


def test_settings_that_are_printed_do_not_show_it() -> None:
    assert "s3cr" not in repr(at("postgresql://u:s3cr@host/db"))


# failures of the server

Way = Callable[[Databases, Config], str]


def wrong_password(databases: Databases, config: Config) -> str:
    return databases.server.url(name_of(config), "slicemgr", SECRET)


def no_user(databases: Databases, config: Config) -> str:
    return databases.server.url(name_of(config), "nobody", SECRET)


def no_database(databases: Databases, config: Config) -> str:
    return databases.server.url("nothing", "slicemgr")


def no_socket(databases: Databases, config: Config) -> str:
    return config.store_url + "/elsewhere"


def no_port(databases: Databases, config: Config) -> str:
    return "postgresql://u:s3cr@127.0.0.1:1/d"


def no_host(databases: Databases, config: Config) -> str:
    return "postgresql://u:s3cr@nowhere.invalid/d"


def no_room(databases: Databases, config: Config) -> str:
    ensure_role(databases, "crowded", "CONNECTION LIMIT 0")
    return databases.server.url(name_of(config), "crowded")


def no_right(databases: Databases, config: Config) -> str:
    ensure_role(databases, "stranger")
    return databases.server.url(name_of(config), "stranger")


def ensure_role(databases: Databases, name: str, limit: str = "") -> None:
    if not databases.server.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
        databases.server.sql(f"CREATE ROLE {name} LOGIN {limit} PASSWORD '{databases.server.password}'")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (wrong_password, "refuses the user or the password"),
        (no_user, "refuses the user or the password"),
        (no_database, "has no such database"),
        (no_socket, "does not answer"),
        (no_port, "does not answer"),
        (no_host, "does not answer"),
        (no_room, "too many connections"),
        (no_right, "refuses access to this user"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(
    databases: Databases, config: Config, way: Way, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = way(databases, config)
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match=words) as caught:
        slicemgr.store.open(at(url))
    assert caught.value.code.status == 503
    assert caught.value.hint
    told = caplog.text + "".join(traceback.format_exception(caught.value))
    for secret in (str(make_url(url).password), url.partition("@")[0].rpartition(":")[2]):
        assert secret not in told


def test_an_upgrade_that_may_not_make_tables(databases: Databases, tmp_path: Path) -> None:
    config = config_in(tmp_path)
    databases.make(config.store_url, "template0")
    with pytest.raises(StoreError, match="refuses access to this user") as caught:
        schema.upgrade(no_right(databases, config))
    assert "own the database" in caught.value.hint


def test_a_database_of_another_encoding(databases: Databases, tmp_path: Path) -> None:
    config = config_in(tmp_path)
    databases.make(config.store_url, "template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(StoreError, match="encoding is LATIN1"):
        schema.upgrade(config.store_url)


def test_a_read_only_database(databases: Databases, config: Config) -> None:
    databases.server.sql(f"ALTER DATABASE {name_of(config)} SET default_transaction_read_only = on")
    with slicemgr.store.open(config) as store:
        with pytest.raises(StoreError, match="read-only"), store.write() as c:
            c.execute(tables.projects.delete())
        with store.read() as c:
            assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN


def test_who_reads_cannot_write_without_the_lock(store: Store) -> None:
    with pytest.raises(StoreError, match="read-only"), store.read() as c:
        c.execute(tables.projects.delete())
    with store.write() as c:  # and the connection is as before
        c.execute(tables.projects.insert().values(name="p", created_at=utcnow()))


def test_what_the_url_says_beside_is_kept(databases: Databases, config: Config) -> None:
    url = f"{config.store_url}&options=-c%20work_mem%3D3MB&application_name=mine"
    with Store(make_engine(url, timedelta(milliseconds=1500))) as store, store.read() as c:
        shown = {name: c.exec_driver_sql(f"SHOW {name}").scalar_one() for name in ("work_mem", "lock_timeout")}
        assert shown == {"work_mem": "3MB", "lock_timeout": "1500ms"}
        assert c.exec_driver_sql("SHOW application_name").scalar_one() == "mine"


def test_a_nul_in_what_a_program_said_does_not_cost_the_report(store: Store) -> None:
    with store.write() as c:
        pending.record(c, [pending.EventSeen("agent", "repair", detail="a\0b")], "node1")
    with store.read() as c:
        assert c.scalar(sa.select(tables.events.c.detail)) == "a\N{REPLACEMENT CHARACTER}b"
        assert c.scalar(sa.select(tables.users.c.name).where(tables.users.c.name == "admin\0")) is None


# turns


@pytest.mark.parametrize("take_turns", [True, False])
def test_many_waiting_writers_leave_a_connection_to_who_reads(
    config: Config, take_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not take_turns:
        monkeypatch.setattr(Store, "_my_turn", lambda self: contextlib.nullcontext())
    patient = dataclasses.replace(config, store=dataclasses.replace(config.store, lock_timeout=timedelta(minutes=2)))

    def write(store: Store) -> None:
        with store.write():
            pass

    def read(store: Store) -> Any:
        with store.read() as c:
            return c.scalar(sa.select(tables.users.c.name))

    with (
        slicemgr.store.open(patient) as store,
        slicemgr.store.open(config) as other,
        ThreadPoolExecutor(51) as pool,
        other.write(),
    ):
        for _ in range(50):
            pool.submit(write, store)
        connections = store.engine.pool
        assert isinstance(connections, sa.QueuePool)
        until(lambda: connections.checkedout() == (1 if take_turns else connections.size()))
        reading = pool.submit(read, store)
        if take_turns:
            assert reading.result(60) == schema.ADMIN
        else:
            with pytest.raises(TimeoutError):
                reading.result(2)


@pytest.mark.parametrize("locking", [True, False])
def test_writers_of_two_processes_never_decide_on_the_same_state(
    config: Config, locking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control has no lock: both read before either writes, and one of the two is lost."""
    if not locking:
        monkeypatch.setattr(postgresql, "lock", lambda connection: None)
    both_have_read = threading.Barrier(2)

    def add_one(store: Store) -> None:
        with store.write() as c:
            count = c.scalar(sa.select(sa.func.count()).select_from(tables.events)) or 0
            with contextlib.suppress(threading.BrokenBarrierError):
                both_have_read.wait(0.3 if locking else 30)
            pending.record(c, [pending.EventSeen("x", str(count))], "node1")

    with slicemgr.store.open(config) as one, slicemgr.store.open(config) as other:
        with ThreadPoolExecutor(2) as pool:
            for finished in [pool.submit(add_one, store) for store in (one, other)]:
                finished.result()
        with one.read() as c:
            told = sorted(c.scalars(sa.select(tables.events.c.action)))
    assert told == (["0", "1"] if locking else ["0", "0"])


# restarts of the server


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_the_server_is_survived(how: signal.Signals, tmp_path: Path) -> None:
    with Server() as server, databases_on(server):
        config = config_in(tmp_path, web=WebConfig(threads=1), store=StoreConfig(lock_timeout=SECOND))
        fresh_database(config)
        with slicemgr.store.open(config) as store, Journal(store, "node1") as journal:
            journal.add(pending.EventSeen("x", "before"))
            assert journal.flush()
            server.stop(how)
            with pytest.raises(StoreError, match="does not answer"), store.read() as c:
                c.scalar(sa.select(tables.users.c.name))
            journal.add(pending.EventSeen("x", "meanwhile"))
            assert not journal.flush(0.3)
            server.start()
            with store.read() as c:  # at once, also with old connections in the pool
                assert c.scalar(sa.select(tables.users.c.name)) == schema.ADMIN
            assert journal.flush()
            with store.read() as c:
                assert list(c.scalars(sa.select(tables.events.c.action))) == ["before", "meanwhile"]


def test_the_signer_outlives_a_restart_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Server() as server, databases_on(server):
        config = config_in(tmp_path, store=StoreConfig(lock_timeout=SECOND))
        fresh_database(config)
        with slicemgr.store.open(config) as store, ThreadPoolExecutor(1) as pool:
            authority, stop = signer.prepare(store, config.authority_dir), threading.Event()
            running = pool.submit(signer.run, store, authority, stop)
            server.stop()
            until(lambda: "the signer tries again" in caplog.text or running.done())
            server.start()
            with store.write() as c:
                c.execute(tables.renewals.insert().values(identity="node-1", request="x", created_at=utcnow()))
            until(lambda: "the renewal of node-1 is refused" in caplog.text or running.done())
            assert not running.done()
            stop.set()
            running.result()
    assert "the renewal of node-1 is refused" in caplog.text, "it works again"


def test_a_connection_that_ends_in_a_transaction_undoes_it(databases: Databases, store: Store, config: Config) -> None:
    with pytest.raises(StoreError, match=r"starting or stopping|does not answer"), store.write() as c:
        c.execute(tables.projects.insert().values(name="lost", created_at=utcnow()))
        databases.server.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(config)}'"
        )
        c.scalar(sa.select(tables.users.c.name))
    with store.write() as c:
        assert set(c.scalars(sa.select(tables.projects.c.name))) == {DEFAULT_PROJECT}


def test_nothing_of_the_server_is_left() -> None:
    with Server() as server:
        assert server.sql("SHOW listen_addresses") == [("",)]
        assert server.sql("SELECT current_setting('is_superuser')") == [("on",)]
        process, folder = server._process, server.folder
        assert process is not None
        uid = Path(f"/proc/{process.pid}").stat().st_uid
        assert uid != 0
    assert process.poll() is not None
    assert not folder.exists()

"""The database as it can be found: locked, read-only, missing, broken; and what the agent writes into it."""

from __future__ import annotations

import dataclasses
import sqlite3
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from world import ADMIN, SHA256, request, service, settings

from slicemgr import store as stores
from slicemgr.config import Config, StoreConfig
from slicemgr.errors import Code
from slicemgr.model import Desired, ImageState, OperationState, Phase
from slicemgr.service import slices, specs
from slicemgr.store import Store, StoreError, schema, updates, work
from slicemgr.store import tables as t
from slicemgr.store.engine import make_engine
from slicemgr.store.wake import Listener, wake


def database(config: Config) -> Path:
    return Path(config.store_url.removeprefix("sqlite:///"))


def impatient(directory: Path) -> Config:
    return dataclasses.replace(settings(directory), store=StoreConfig(lock_timeout=timedelta(milliseconds=50)))


def test_a_locked_database_is_said_so_and_readers_go_on(tmp_path: Path) -> None:
    config = impatient(tmp_path)
    with service(config) as store:
        other = sqlite3.connect(database(config), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process") as caught, store.write():
            pytest.fail("two writers")
        assert caught.value.code is Code.UNAVAILABLE
        with store.read() as c:
            assert c.scalar(sa.select(t.nodes.c.name)) == "node1"
        other.execute("ROLLBACK")
        other.close()
        with store.write() as c:
            assert c.scalar(sa.select(t.nodes.c.name)) == "node1"


READ_ONLY = """
import os, sys
from slicemgr.store import StoreError
from slicemgr.store.engine import Store, make_engine
from datetime import timedelta
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with Store(make_engine(sys.argv[1], timedelta(seconds=1))).write() as c:
        c.exec_driver_sql("DELETE FROM events")
except StoreError as error:
    print(error)
"""


def test_a_read_only_database_is_said_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    schema.upgrade(url)
    plain = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    plain.execute("PRAGMA journal_mode=DELETE")
    plain.close()
    with Store(make_engine(url, timedelta(seconds=1))) as writable, writable.write() as c:
        c.execute(t.events.delete())  # the control
    read_only = f"sqlite:///file:{tmp_path}/x.db?mode=ro&uri=true"
    store = Store(make_engine(read_only, timedelta(seconds=1)))
    with store, pytest.raises(StoreError, match="read-only") as caught, store.write() as c:
        c.execute(t.events.delete())
    assert "writable" in caught.value.hint


def test_a_database_of_another_user_is_said_so() -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = settings(Path(directory))
        with service(config):
            pass
        Path(directory).chmod(0o755)
        argv = [sys.executable, "-c", READ_ONLY, config.store_url]
        found = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "the database" in found.stdout and "writable for this user" in found.stdout


def test_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        stores.open(settings(tmp_path))


def test_not_a_database(tmp_path: Path) -> None:
    config = settings(tmp_path)
    database(config).parent.mkdir(parents=True)
    database(config).write_bytes(b"something else" * 500)
    with pytest.raises(StoreError, match="is not a database"):
        stores.open(config)
    with pytest.raises(StoreError, match="is not a database"):
        schema.upgrade(config.store_url)


def test_an_exception_undoes_the_transaction(tmp_path: Path) -> None:
    with service(settings(tmp_path)) as store:
        with pytest.raises(KeyError), store.write() as c:
            c.execute(t.images.delete())
            raise KeyError
        with store.read() as c:
            assert c.scalar(sa.select(t.images.c.name)) == "debian"


def test_constraints_guard_what_code_forgets(tmp_path: Path) -> None:
    config = settings(tmp_path)
    with service(config) as store:
        slices.create(store, config, specs.slice_spec(request(), config), ADMIN)
        with store.read() as c:
            row = dict(c.execute(sa.select(t.slivers)).mappings().one())
        for changed in ({"address": "10.77.9.9"}, {"uid_first": 1}):
            twice = {**row, "serial": 99, "id": "x", "idx": 1, **changed}
            with pytest.raises(exc.IntegrityError), store.write() as c:
                c.execute(t.slivers.insert().values(twice))
        with pytest.raises(exc.IntegrityError), store.write() as c:
            c.execute(t.ports.insert().values(node="node1", port=row["port_first"], sliver=row["serial"]))
        with pytest.raises(exc.IntegrityError), store.write() as c:
            c.execute(t.images.delete())


def test_what_the_agent_reads_and_writes(tmp_path: Path) -> None:
    config = settings(tmp_path)
    with service(config) as store:
        id_ = slices.create(store, config, specs.slice_spec(request(count=2), config), ADMIN)
        with store.read() as c:
            (operation,) = work.pending_operations(c, "node1")
            rows = work.slivers(c, "node1")
            assert work.pending_operations(c, "other") == []
        assert (operation.id, operation.kind, operation.state) == (id_, "create", OperationState.QUEUED)
        assert operation.slivers == tuple(row.sliver.id for row in rows)
        assert [row.sliver.hostname for row in rows] == ["exp-0", "exp-1"]
        assert {row.sliver.siblings for row in rows} == {2}
        first, second = (row.sliver.id for row in rows)
        with store.write() as c:
            work.record(
                c,
                [
                    updates.SliverSeen(first, Phase.RUNNING, host_key="ssh-ed25519 AAAA"),
                    updates.SliverSeen(second, Phase.FAILED, error="no room"),
                    updates.SliverSeen("notthere-0", Phase.RUNNING),
                    updates.Usage(first, 5, 6),
                    updates.OperationEnded(id_, OperationState.FAILED, "no room"),
                ],
            )
            work.record(c, [updates.SliverSeen(first, Phase.STOPPED)])
        with store.read() as c:
            seen = {row.sliver.id: row for row in work.slivers(c, "node1")}
            assert work.pending_operations(c, "node1") == []
        assert seen[first].phase is Phase.STOPPED and seen[first].sliver.host_key == "ssh-ed25519 AAAA"
        assert (seen[second].phase, seen[second].error) == (Phase.FAILED, "no room")
        assert seen[second].sliver.desired is Desired.RUNNING
        with store.write() as c:
            work.record(c, [updates.SliverGone(first), updates.SliverGone(second)])
        with store.read() as c:
            for table in (t.slices, t.slivers, t.ports):
                assert c.scalar(sa.select(sa.func.count()).select_from(table)) == 0


def test_images_come_and_go(tmp_path: Path) -> None:
    with service(settings(tmp_path)) as store:
        with store.write() as c:
            work.record(c, [updates.ImageSeen(SHA256, ImageState.READY, arch="x86_64", os="Debian 12")])
            work.record(c, [updates.ImageSeen(SHA256, ImageState.READY)])
            (image,) = work.images(c)
        assert (image.arch, image.os, image.name) == ("x86_64", "Debian 12", "debian")
        with store.write() as c:
            work.record(c, [updates.ImageGone(SHA256)])
            assert work.images(c) == []


def test_a_wake_up_arrives_and_needs_no_listener(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    wake(path)
    with Listener(path) as listener:
        for _ in range(3):
            wake(path)
        assert listener.wait(10)
        assert not listener.wait(0.01)
    assert list(tmp_path.iterdir()) == []

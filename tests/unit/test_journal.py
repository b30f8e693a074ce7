"""The agent's writer: everything queued is written, in order, also past a database that is locked for a while."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import service, settings

from slicemgr.agent.journal import Journal
from slicemgr.ipc.wake import Listener
from slicemgr.store import outbox, updates
from slicemgr.store import tables as t
from slicemgr.store.engine import Store, make_engine

pytestmark = pytest.mark.usefixtures("both_stores")


def actions(store: Store) -> list[str]:
    with store.read() as c:
        return list(c.scalars(sa.select(t.events.c.action).order_by(t.events.c.id)))


def test_all_is_written_in_order(tmp_path: Path) -> None:
    with service(settings(tmp_path)) as store, Journal(store, "node1") as journal:
        for number in range(50):
            journal.add(updates.EventSeen("x", str(number)))
        assert journal.flush()
        assert actions(store) == [str(number) for number in range(50)]


def test_leaving_writes_what_is_queued(tmp_path: Path) -> None:
    with service(settings(tmp_path)) as store:
        with Journal(store, "node1") as journal:
            journal.add(updates.EventSeen("x", "a"), updates.EventSeen("x", "b"))
        assert actions(store) == ["a", "b"]


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    with service(settings(tmp_path)) as store, Journal(store, "node1") as journal:

        def write(n: int) -> None:
            for i in range(20):
                journal.add(updates.EventSeen("x", f"{n} {i}"))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert journal.flush()
        written = actions(store)
        for n in range(8):
            assert [one for one in written if one.startswith(f"{n} ")] == [f"{n} {i}" for i in range(20)]


def test_updates_for_a_centre(tmp_path: Path) -> None:
    """On a node that has joined a testbed they are also in the outbox, in the same transaction; else they are not."""
    config = settings(tmp_path)
    with service(config) as store:
        with Journal(store, "node1") as journal:
            journal.add(updates.EventSeen("x", "a"))
        with Listener(config.link_socket) as listener, Journal(store, "node1", link=config.link_socket) as journal:
            journal.add(updates.EventSeen("x", "b"), updates.NodeSeen("node1", "192.0.2.1"))
            assert journal.flush() and listener.wait(30)
        with store.read() as c:
            assert [(kind, body["action"]) for _, kind, body in outbox.batch(c)] == [("event", "b")]
        assert actions(store) == ["a", "b"]


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    config = settings(tmp_path)
    with service(config) as ready:
        impatient = Store(make_engine(config.store_url, timedelta(milliseconds=20)))
        with impatient as store, Journal(store, "node1") as journal, ExitStack() as other:
            other.enter_context(ready.write())
            journal.add(updates.EventSeen("x", "a"))
            assert not journal.flush(0.3)
            other.close()
            assert journal.flush()
        assert actions(ready) == ["a"]

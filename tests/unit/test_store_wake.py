"""Waking the agent."""

from __future__ import annotations

import threading
from pathlib import Path

from slicemgr.store.wake import Listener, wake


def test_a_wake_up_is_heard_and_many_are_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    with Listener(path) as listener:
        for _ in range(5000):  # more than the socket holds: none of them waits
            wake(path)
        assert listener.wait(5)
        assert not listener.wait(0.01)
        assert not listener.wait(0)
    assert not path.exists()


def test_a_waiting_listener_is_woken(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with Listener(path) as listener:
        sender = threading.Timer(0.02, wake, [path])
        sender.start()
        assert listener.wait(30)
        sender.join()


def test_nobody_listens(tmp_path: Path) -> None:
    wake(tmp_path / "agent.sock")
    (tmp_path / "file").write_text("")
    wake(tmp_path / "file")


def test_what_a_killed_agent_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    left = Listener(path)
    left.__enter__()
    left._socket.close()
    with Listener(path) as listener:
        wake(path)
        assert listener.wait(5)


def test_an_unprivileged_sender_may_wake(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with Listener(path):
        assert path.stat().st_mode & 0o777 == 0o666

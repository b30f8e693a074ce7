"""Waking the agent."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicemgr.ipc.wake import Listener, held, wake

USER = 64127  # a UID that no account uses


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


def test_wake_ups_that_are_held_back_come_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with Listener(path) as listener:
        with held():
            wake(path)
            assert not listener.wait(0)
            other = threading.Thread(target=wake, args=(path,))  # its transaction is another one
            other.start()
            other.join()
            assert listener.wait(0)
        assert listener.wait(0)
        with pytest.raises(KeyError), held():
            wake(path)
            raise KeyError
        assert not listener.wait(0), "nothing was committed"
        wake(path)
        assert listener.wait(0)


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


def test_the_web_process_may_wake_and_no_other_user(open_place: Path) -> None:
    path = open_place / "agent.sock"
    with Listener(path, f"{USER}:{USER}") as listener:
        wake_as(USER, path)
        assert listener.wait(30)
        wake_as(USER + 1, path)
        assert not listener.wait(0.2)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def wake_as(user: int, path: Path) -> None:
    def send() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        wake(path)

    process = multiprocessing.get_context("fork").Process(target=send)
    process.start()
    process.join()
    assert process.exitcode == 0

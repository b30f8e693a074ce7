"""The hub runs as the owner of its files; the web process wakes it through a socket that its group may use."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicemgr.errors import Refused
from slicemgr.hub import owner
from slicemgr.ipc.wake import HUB, Listener, wake

HUB_USER, WEB_USER = 64128, 64129  # UIDs that no account uses


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter and write, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


def apart(work: Callable[[], object]) -> int | None:
    """Run a function in another process. Returns its exit status."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def files(place: Path) -> Path:
    folder = place / "files"
    folder.mkdir(mode=0o700)
    (folder / "key.pem").write_text("key")
    (folder / "key.pem").chmod(0o600)
    return folder


def started(folder: Path, place: Path) -> dict[str, object]:
    """The ids, groups and rights of a process that was started as root and became the owner of the folder."""

    def work() -> None:
        owner.become(folder, place / "sockets", f"{WEB_USER}:{WEB_USER}")
        (place / "seen").write_text(
            json.dumps(
                {
                    "ids": [*os.getresuid(), *os.getresgid()],
                    "groups": os.getgroups(),
                    "key": (folder / "key.pem").read_text(),
                    "root": os.access("/root", os.R_OK),
                }
            )
        )

    assert apart(work) == 0
    seen: dict[str, object] = json.loads((place / "seen").read_text())
    return seen


def test_it_becomes_the_owner_of_its_files(place: Path) -> None:
    folder = files(place)
    owner.give(folder, f"{HUB_USER}:{HUB_USER}")
    assert started(folder, place) == {"ids": 6 * [HUB_USER], "groups": [WEB_USER], "key": "key", "root": False}
    assert (place / "sockets").stat().st_uid == HUB_USER


def test_files_of_root_leave_it_root(place: Path) -> None:
    """The control."""
    seen = started(files(place), place)
    assert seen["ids"] == 6 * [0] and seen["root"]


def test_the_user_is_not_root(place: Path) -> None:
    for user in ("0:0", "root"):
        for action in (owner.exists, lambda user: owner.give(place, user)):
            with pytest.raises(Refused) as caught:
                action(user)
            assert caught.value.field == "hub.user"
    assert not owner.exists("no-such-user") and owner.exists(f"{HUB_USER}:{HUB_USER}")


@pytest.mark.parametrize(("member", "woken"), [(True, True), (False, False)])
def test_a_hub_without_privileges_is_woken_by_the_group_of_the_web_process(
    place: Path, member: bool, woken: bool
) -> None:
    """If it is a member of that group; the control is one that is not."""
    (place / "hub").mkdir()
    os.chown(place / "hub", HUB_USER, HUB_USER)

    def become(user: int, groups: list[int]) -> None:
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)

    def listen() -> None:
        become(HUB_USER, [WEB_USER] if member else [])
        with Listener(place / HUB, f"{WEB_USER}:{WEB_USER}") as listener:
            (place / "ready").touch()
            heard = listener.wait(20 if woken else 1)
            (place / "heard").write_text(str(heard))

    process = multiprocessing.get_context("fork").Process(target=listen)
    process.start()
    while not (place / "ready").exists():
        assert process.is_alive()
        time.sleep(0.01)
    mode = (place / HUB).stat()
    assert (mode.st_mode & 0o777, mode.st_gid == WEB_USER) == ((0o660, True) if member else (0o600, False))

    def send() -> None:
        become(WEB_USER, [])
        wake(place / "agent.sock")

    assert apart(send) == 0
    process.join()
    assert (place / "heard").read_text() == str(woken)

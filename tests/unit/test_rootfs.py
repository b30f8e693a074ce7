"""A root whose tenant holds, renames, replaces or enlarges files: work is bounded, with a clear error.

The controls are the plain calls for opening and listing.
"""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.kernel import openat2
from slicemgr.errors import Failed

KEY = "ssh-ed25519 AAAAours a"
PATH = "root/.ssh/authorized_keys"
PASSWD = "root:x:0:0::/root:/bin/sh\n"
LONG = 60.0  # seconds that a loaded host is given; passed only by a test that fails
BLOCKED = 1.5  # seconds that an open waits at least while the lease is held; the kernel breaks it after 45

_fork = multiprocessing.get_context("fork")


@contextmanager
def leased(*files: Path) -> Iterator[int]:
    """Another process holds the files by write leases and ignores the signal to give them up; its number."""
    begun = _fork.Event()

    def hold() -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        held = [os.open(file, os.O_RDONLY) for file in files]
        for fd in held:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        begun.set()
        time.sleep(600)

    process = _fork.Process(target=hold, daemon=True)
    process.start()
    try:
        assert begun.wait(60), "the leases are taken"
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for directory in ("etc", "root/.ssh"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / PATH).write_text("# mine\n")
    return tmp_path


def test_a_lease_is_not_waited_for_and_the_error_names_the_file(tree: Path) -> None:
    with leased(tree / "etc/passwd"), Root(tree) as root:
        with pytest.raises(Failed, match=r"cannot read /etc/passwd .*: a lease inside the sliver holds the file"):
            authorized_keys.write(root, [KEY], [])
        assert (tree / PATH).read_text() == "# mine\n", "nothing half done"


def test_a_plain_open_waits_for_it(tree: Path) -> None:
    """The control: the former implementation."""
    read = threading.Event()

    def plain() -> None:
        (tree / "etc/passwd").read_bytes()
        read.set()

    with leased(tree / "etc/passwd"):
        threading.Thread(target=plain, daemon=True).start()
        assert not read.wait(BLOCKED), "the lease does not hold up a plain open: this test shows nothing"
    assert read.wait(60)


def test_many_leases_together_are_waited_for_once(tree: Path) -> None:
    files = [tree / f"file{number}" for number in range(20)]
    for file in files:
        file.write_text("x")
    with leased(*files), Root(tree) as root:
        waits = []
        for file in files:
            began = time.monotonic()
            with pytest.raises(Failed, match="lease"):
                root.read(file.name, 10)
            waits.append(time.monotonic() - began)
    assert max(waits[1:]) < waits[0] and sum(waits[1:]) < waits[0], waits


def test_a_holder_that_lets_go_is_waited_for(tree: Path) -> None:
    with leased(tree / "etc/passwd") as holder, Root(tree, patience=60) as root:
        threading.Timer(0.2, os.kill, (holder, signal.SIGKILL)).start()
        assert root.read("etc/passwd", 100) == PASSWD.encode()


def test_replacing_and_removing_wait_for_no_lease(tree: Path) -> None:
    for name in ("passwd", "gone"):
        (tree / "etc" / name).write_text(PASSWD)
    with leased(tree / "etc/passwd", tree / "etc/gone"), Root(tree, patience=0) as root:
        assert root.write("etc/passwd", PASSWD.encode())
        root.chmod("etc/gone", 0o600)
        root.remove("etc/gone")
        assert root.read("etc/passwd", 100) == PASSWD.encode(), "the new file is nobody's"
    assert sorted(one.name for one in (tree / "etc").iterdir()) == ["passwd"]


def test_a_fifo_in_the_place_of_a_file_is_none(tree: Path) -> None:
    (tree / "etc/passwd").unlink()
    os.mkfifo(tree / "etc/passwd")
    with Root(tree) as root:
        assert root.read("etc/passwd", 10) is None
        assert not root.copy_out("etc/passwd", tree / "copy")
        authorized_keys.write(root, [KEY], [])
    assert (tree / PATH).read_text() == f"# mine\n{KEY}\n"


def test_a_sparse_file_of_any_size_is_read_to_the_limit_and_not_copied(tree: Path) -> None:
    os.truncate(tree / "etc/passwd", 1 << 40)
    with Root(tree) as root:
        assert len(root.read("etc/passwd", 1000) or b"") == 1000
        authorized_keys.write(root, [KEY], [])
        with pytest.raises(Failed, match="larger than"):
            root.copy_out("etc/passwd", tree / "copy")
    assert not (tree / "copy").exists()


def test_a_directory_of_too_many_names_is_refused(tree: Path) -> None:
    for number in range(10_001):
        (tree / "etc" / f"{number}").touch()
    with Root(tree) as root, pytest.raises(Failed, match=r"cannot list /etc .* more than 10000 entries"):
        root.names("etc")


@contextmanager
def renaming(directory: Path) -> Iterator[None]:
    """Other processes rename directories as fast as they can: at least one of them on another CPU than the test."""

    def rename(one: Path, other: Path) -> None:
        while True:
            one.rename(other)
            other.rename(one)

    processes = []
    for number in range(2):
        one = directory / f"{number}"
        one.mkdir(parents=True)
        processes.append(_fork.Process(target=rename, args=(one, one.with_suffix(".b")), daemon=True))
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_renames_elsewhere_do_not_keep_a_path_from_being_opened(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel answers EAGAIN to a path with `..` while any process renames. The control: one attempt.

    Attempts are compared, not times: on a loaded host, the test is descheduled for longer than the usual patience.
    """
    (tree / "etc/deep").symlink_to("../etc/" * 200 + "passwd")
    monkeypatch.setattr(openat2, "_PATIENCE", LONG)
    with renaming(tmp_path_factory.mktemp("elsewhere")):
        with Root(tree) as root:
            assert {root.read("etc/deep", 100) for _ in range(100)} == {PASSWD.encode()}
        monkeypatch.setattr(openat2, "_TRIES", 1)
        monkeypatch.setattr(openat2, "_PATIENCE", 0.0)
        assert _fails_with_eagain(tree)


def _fails_with_eagain(tree: Path) -> bool:
    """Whether one of the attempts within a minute fails: none does while all of the processes share one CPU."""
    fd, end = os.open(tree, os.O_PATH), time.monotonic() + LONG
    try:
        while time.monotonic() < end:
            try:
                os.close(openat2.open_in_root(fd, "etc/deep", os.O_PATH))
            except BlockingIOError as error:
                return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False

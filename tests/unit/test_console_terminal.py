"""A console as a terminal: reads, writes and refusals without waiting, and its owner."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import tty
from collections.abc import Iterator

import pytest

from slicemgr.drivers.libvirt.console import Console, ConsoleEnded
from slicemgr.errors import Failed


@pytest.fixture
def far() -> Iterator[tuple[int, str]]:
    """The domain's end of the terminal, and the path of the other end."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    yield master, os.ttyname(slave)
    os.close(slave)


def test_bytes_both_ways_without_waiting(far: tuple[int, str]) -> None:
    master, path = far
    with Console(path) as console:
        assert console.read(100) == b""
        os.write(master, b"said")
        assert select.select([console], [], [], 10)[0]
        assert (console.read(2), console.read(100), console.read(100)) == (b"sa", b"id", b"")
        assert console.write(b"typed") == 5
        assert os.read(master, 100) == b"typed"
        assert sum(console.write(b"x" * 65536) for _ in range(100)) < 6_000_000  # returns although no process reads
        assert console.write(b"x" * 65536) == 0
    os.close(master)


def test_the_end_of_the_domain_ends_it(far: tuple[int, str]) -> None:
    master, path = far
    with Console(path) as console:
        os.close(master)
        with pytest.raises(ConsoleEnded):
            console.read(100)
        with pytest.raises(ConsoleEnded):
            console.write(b"x")


def test_leaving_does_not_end_the_domain_s_end(far: tuple[int, str]) -> None:
    master, path = far
    for _ in range(3):
        with Console(path) as console:
            console.write(b"x")
    with Console(path) as console:
        os.write(master, b"still")
        assert console.read(100) == b"still"
    os.close(master)


def test_it_belongs_to_who_has_the_other_end(far: tuple[int, str]) -> None:
    master, path = far
    with Console(path) as console:
        assert console.belongs_to(os.getpid())
        with subprocess.Popen(["sleep", "60"]) as another:
            assert not console.belongs_to(another.pid)
            another.kill()
        assert not console.belongs_to(2**22 + 1)
        os.close(master)
        assert not console.belongs_to(os.getpid())


def test_a_terminal_that_is_not_there() -> None:
    with pytest.raises(Failed, match="/dev/pts/none"):
        Console("/dev/pts/none")

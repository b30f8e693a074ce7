"""The screen of a virtual machine as a socket: reads and writes without waiting, its end, and its owner."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicemgr.drivers.libvirt.console import ConsoleEnded
from slicemgr.drivers.libvirt.screen import Screen
from slicemgr.errors import Failed

_TIMEOUT = 10  # seconds


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket in the place of QEMU's VNC server, and its path."""
    path = str(tmp_path / "vnc.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(_TIMEOUT)
        yield listening, path


def test_bytes_both_ways_without_waiting(server: tuple[socket.socket, str]) -> None:
    listening, path = server
    with Screen(path) as screen, listening.accept()[0] as far:
        assert screen.read(100) == b""
        far.sendall(b"RFB 003.008\n")
        assert select.select([screen], [], [], _TIMEOUT)[0]
        assert (screen.read(3), screen.read(100), screen.read(100)) == (b"RFB", b" 003.008\n", b"")
        assert screen.write(b"key") == 3
        assert far.recv(100) == b"key"
        while screen.write(b"x" * 65536):  # until the buffers are full: it returns although no process reads
            pass
        assert screen.write(b"x") == 0


def test_the_end_of_the_server_ends_it(server: tuple[socket.socket, str]) -> None:
    listening, path = server
    with Screen(path) as screen:
        listening.accept()[0].close()
        with pytest.raises(ConsoleEnded):
            screen.read(100)
        with pytest.raises(ConsoleEnded):
            screen.write(b"x")


def test_it_belongs_to_the_process_that_listens(server: tuple[socket.socket, str]) -> None:
    with Screen(server[1]) as screen, subprocess.Popen(["sleep", "60"]) as another:
        assert screen.belongs_to(os.getpid())
        assert not screen.belongs_to(another.pid)
        another.kill()


def test_a_socket_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"cannot open the screen .*none\.sock"):
        Screen(str(tmp_path / "none.sock"))

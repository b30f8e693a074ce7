"""Consoles and screens end when the right to use them ends. Only machines have screens. Terminals have a size."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from rfb import Viewer
from terminal import Terminal
from testbed import BIN, Node

from slicemgr.client import Client
from slicemgr.errors import Code, Refused
from slicemgr.ipc.websocket import Channel

PASSWORD = "correct horse battery"


@dataclass
class Person:
    """A user with a token."""

    client: Client
    token: str
    id: str


@pytest.fixture
def eve(node: Node) -> Iterator[Person]:
    with signed_in(node) as person:
        yield person


@contextmanager
def signed_in(node: Node) -> Iterator[Person]:
    """A PI of the project in which the admin makes slices."""
    with node.client() as admin:
        if "eve" not in {one["name"] for one in _call(admin, "GET", "/users")["users"]}:
            token = _call(admin, "POST", "/users", {"name": "eve"})["invitation"]["token"]
            _call(admin, "POST", "/invitation", {"token": token, "password": PASSWORD})
        _call(admin, "PATCH", "/users/eve", {"enabled": True})
        _call(admin, "PUT", "/projects/default/members/eve", {"role": "pi"})
        made = _call(admin, "POST", "/login", {"user": "eve", "password": PASSWORD})
        with Client(node.url, made["token"]) as client:
            yield Person(client, made["token"], made["id"])


def _call(client: Client, method: str, path: str, body: Any = None) -> Any:
    return client.connection.call(method, path, body)


def ended(channel: Channel, seconds: float = 20) -> Code | None:
    """The code with which the other end closed the connection; None if it is still open after the time."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while channel.ended is None and time.monotonic() < deadline:
        poll.poll(200)
        channel.receive()
    if channel.ended is None:
        return None
    error = channel.ended.error("lost")
    return error.code if error else None


LOSSES: dict[str, tuple[Callable[[Client, Person], object], Code]] = {
    "revoked": (lambda admin, eve: _call(eve.client, "DELETE", f"/tokens/{eve.id}"), Code.UNAUTHENTICATED),
    "disabled": (lambda admin, eve: _call(admin, "PATCH", "/users/eve", {"enabled": False}), Code.UNAUTHENTICATED),
    "out of the project": (
        lambda admin, eve: _call(admin, "DELETE", "/projects/default/members/eve"),
        Code.NOT_FOUND,
    ),
    "a member": (
        lambda admin, eve: _call(admin, "PUT", "/projects/default/members/eve", {"role": "member"}),
        Code.DENIED,
    ),
}


def test_what_is_taken_from_somebody_ends_their_console_and_no_other(node: Node, eve: Person) -> None:
    node.create("exp", "--count", "2")
    for take_away, code in LOSSES.values():
        with node.client() as admin, ExitStack() as stack:
            _call(admin, "PATCH", "/users/eve", {"enabled": True})
            _call(admin, "PUT", "/projects/default/members/eve", {"role": "pi"})
            again = _call(admin, "POST", "/login", {"user": "eve", "password": PASSWORD})
            client = stack.enter_context(Client(node.url, again["token"]))
            hers = stack.enter_context(client.slices.console("exp", 0))
            his = stack.enter_context(admin.slices.console("exp", 1))
            take_away(admin, Person(client, again["token"], again["id"]))
            assert ended(hers) is code
            assert ended(his, 5) is None  # the control: checked as often, and not closed


def test_a_token_that_was_revoked_before_it_is_used_opens_nothing(node: Node, eve: Person) -> None:
    from slicemgr.ipc import websocket

    node.create("exp")
    asked = _call(eve.client, "POST", "/slices/exp/console", {"sliver": 0})
    _call(eve.client, "DELETE", f"/tokens/{eve.id}")
    service = eve.client.connection.http
    connection = type(service)(service.host, service.port, timeout=30)
    connection.connect()
    with connection.sock, pytest.raises(websocket.Rejected) as caught:
        websocket.connect(connection.sock, "h", asked["path"], asked["token"])
    assert caught.value.status == 401
    assert "revoked" in json.loads(caught.value.body)["detail"]


def test_the_terminal_inside_learns_the_size_of_the_window(node: Node) -> None:
    node.create("exp")
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    with Terminal([str(BIN / "slicectl"), "console", "exp"], environment) as terminal:
        terminal.heard("Ctrl-] to detach")
        for rows, columns in ((50, 160), (33, 77)):
            fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            terminal.process.send_signal(signal.SIGWINCH)
            time.sleep(0.5)
            terminal.type("\rstty size\r")
            terminal.see(f"{rows} {columns}\r")


def test_a_container_has_no_screen(node: Node) -> None:
    node.create("exp")
    with node.client() as client, pytest.raises(Refused) as caught:
        client.slices.console("exp", screen=True)
    assert (caught.value.code, caught.value.field) == (Code.INVALID, "screen")


def see_the_screen(node: Node, eve: Person, machine: str) -> None:
    """A screen is shown at the same time as the console, taken over, and ended by a revocation."""
    with node.client() as admin, admin.slices.console(machine, screen=True) as first:
        viewer = Viewer(first)
        viewer.start()
        assert viewer.size[0] >= 640 and viewer.size[1] >= 400
        deadline = time.monotonic() + 60
        while len(set(viewer.pixels())) < 2:
            assert time.monotonic() < deadline, "the screen stays of one colour"
            time.sleep(1)
        with admin.slices.console(machine) as console:
            assert ended(console, 3) is None
            assert ended(first, 1) is None, "a console takes no screen over"
        with eve.client.slices.console(machine, screen=True) as second:
            assert ended(first) is Code.CONFLICT
            Viewer(second).start()
            _call(eve.client, "DELETE", f"/tokens/{eve.id}")
            assert ended(second) is Code.UNAUTHENTICATED


@pytest.mark.long
def test_a_machine_that_is_deleted_ends_its_screen(node: Node) -> None:
    """The other tests of a screen are in test_guest."""
    node.ensure_machines()
    node.type = "kvm"
    node.create("vm", "--no-wait")
    node.type = "lxc"
    node.ok("wait", "vm", "--for", "running", "--timeout", "10m")
    with node.client() as admin, admin.slices.console("vm", screen=True) as screen:
        Viewer(screen).start()
        node.ok("delete", "vm")
        assert ended(screen) is Code.CONFLICT
    node.agrees()

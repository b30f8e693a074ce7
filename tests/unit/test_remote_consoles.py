"""A console of a sliver on another host: through web process, hub, link and agent, over real sockets."""

from __future__ import annotations

import os
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
import web_process
from centre_and_node import IDENTITY, LOCAL, NODE, World, move
from test_samples import part, whole
from web_process import Web, until

from slicemgr.agent.consoles import Consoles
from slicemgr.agent.questions import Questions
from slicemgr.certificates import requests
from slicemgr.certificates.private_files import write_private
from slicemgr.client import Client
from slicemgr.config import CENTRE, Config
from slicemgr.drivers.libvirt.console import Console
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.hub import signer
from slicemgr.ipc import console_socket
from slicemgr.ipc.console_socket import Order
from slicemgr.ipc.websocket import Channel
from slicemgr.link import join as link
from slicemgr.link.dials import Dials
from slicemgr.store import samples
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_TIMEOUT = 30.0  # seconds


class Terminals:
    """In the place of libvirt: each sliver has a pseudoterminal, whose other end `far` is the sliver."""

    def __init__(self) -> None:
        self.far, self._near = os.openpty()
        tty.setraw(self._near)
        self.screens: list[str] = []

    def console(self, sliver: str) -> Console:
        return Console(os.ttyname(self._near))

    def screen(self, sliver: str) -> Console:
        self.screens.append(sliver)
        return self.console(sliver)

    def domain(self, sliver: str) -> None:
        return None

    def init_pid(self, sliver: str) -> int:
        raise Failed("no process")

    def close(self) -> None:
        os.close(self.far)
        os.close(self._near)


class Testbed:
    """A web process, and a host that has joined it, whose link and agent run in this one."""

    __test__ = False

    def __init__(self, stack: ExitStack, web: Web, folder: Path) -> None:
        self.web, self.store = web, web.service.store
        self.world = stack.enter_context(World(folder, web.service))
        self._join(folder)
        self.terminals = Terminals()
        stack.callback(self.terminals.close)
        opened = Dials(self.world.config)
        self.world.dial = opened.open  # type: ignore[method-assign]
        self._stop = threading.Event()
        web.service.create("exp", count=2)
        move(self.store, "exp", NODE)
        with self.store.write() as c:
            values = {"identity": IDENTITY, "incarnation": "1", "sequence": 1, "version": "1", "beat_at": utcnow()}
            c.execute(t.links.insert().values(values))
        self.world.settle()
        self.consoles = Consoles(self.world.config, self.world.node, cast(Hypervisor, self.terminals))
        stack.enter_context(self.consoles)
        stack.enter_context(Questions(self.world.config, self.world.node))
        thread = threading.Thread(target=self._carry, daemon=True)
        thread.start()
        stack.callback(thread.join, _TIMEOUT)
        stack.callback(self._stop.set)

    def _join(self, folder: Path) -> None:
        authority, key = signer.prepare(self.store, self.web.service.config.authority_dir), requests.new_key()
        public = requests.public_key(requests.new_request(key))
        issued = authority.node(IDENTITY, public, utcnow())
        with self.store.write() as c:
            mine = t.certificates.c.identity == IDENTITY
            c.execute(t.certificates.update().where(mine).values(certificate=issued.certificate))
        where = self.world.config.membership_dir
        where.mkdir(parents=True)
        self.world.config.node.run_dir.mkdir(parents=True)
        write_private(where / link.KEY, requests.key_pem(key))
        write_private(where / link.AUTHORITY, authority.certificate.encode())
        centre = f'{{"url": "http://127.0.0.1:{self.web.port}", "node": "{NODE}", "identity": "{IDENTITY}"}}'
        write_private(where / CENTRE, centre.encode())

    def _carry(self) -> None:
        """What broker and link do, and the hub with orders; rows stay as they are."""
        while not self._stop.wait(0.02):
            self.world.hub.step(woken=True)
            while self.world.to_node:
                self.world.deliver_to_node()

    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.web.port}", self.web.token)

    def typed(self, expected: bytes) -> None:
        """Wait until the sliver has read these bytes."""
        found = b""
        while len(found) < len(expected):
            found += os.read(self.terminals.far, 100)
        assert found == expected


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with ExitStack() as stack:
        web = stack.enter_context(web_process.serving())
        yield Testbed(stack, web, tmp_path_factory.mktemp("node"))


def output(channel: Channel, expected: bytes) -> None:
    """Wait until the user has received these bytes."""
    found = b""

    def received() -> bool:
        nonlocal found
        found += channel.receive()
        assert channel.ended is None, channel.ended
        return len(found) >= len(expected)

    until(received)
    assert found == expected


def ended(channel: Channel) -> SlicemgrError | None:
    """The reason of the end of a console, which it waits for."""

    def over() -> bool:
        channel.receive()
        return channel.ended is not None

    until(over)
    assert channel.ended is not None
    return channel.ended.error("lost")


def test_a_console_on_another_host(testbed: Testbed) -> None:
    with testbed.client() as client, client.slices.console("exp", 1) as channel:
        channel.send(b"uname\r")
        testbed.typed(b"uname\r")
        os.write(testbed.terminals.far, b"Linux\x1b[0m\r\n")
        output(channel, b"Linux\x1b[0m\r\n")
        large = os.urandom(200_000)
        writer = threading.Thread(target=os.write, args=(testbed.terminals.far, large), daemon=True)
        writer.start()
        output(channel, large)
        writer.join(_TIMEOUT)
        with client.slices.console("exp", 1) as later:
            why = ended(channel)
            assert why is not None and why.code is Code.CONFLICT
            assert why.message == "admin opened the console of exp/1, which closed this session"
            os.write(testbed.terminals.far, b"again")
            output(later, b"again")
    sessions = testbed.consoles
    until(lambda: not sessions._open)  # the agent notices that the user has left


def test_a_screen_on_another_host(testbed: Testbed) -> None:
    stores = (testbed.store, testbed.world.node)
    for store in stores:
        with store.write() as c:
            c.execute(t.slices.update().values(type="kvm"))
    try:
        with testbed.client() as client, client.slices.console("exp", screen=True) as channel:
            os.write(testbed.terminals.far, b"RFB 003.008\n")
            output(channel, b"RFB 003.008\n")
    finally:
        for store in stores:
            with store.write() as c:
                c.execute(t.slices.update().values(type="lxc"))
    assert len(testbed.terminals.screens) == 1


def test_who_loses_the_right_loses_the_console(testbed: Testbed) -> None:
    """The service judges it, since the host does not know the accounts."""
    with testbed.client() as client, client.slices.console("exp") as channel:
        os.write(testbed.terminals.far, b"there")
        output(channel, b"there")
        with testbed.store.write() as c:
            c.execute(t.users.update().where(t.users.c.name == "admin").values(enabled=False))
        try:
            why = ended(channel)
        finally:
            with testbed.store.write() as c:
                c.execute(t.users.update().where(t.users.c.name == "admin").values(enabled=True))
    assert why is not None and why.code is Code.UNAUTHENTICATED and "disabled" in why.message


def test_what_the_agent_or_the_host_refuses(testbed: Testbed) -> None:
    """The user gets the reason of the agent; a host that does not report is not asked."""
    sliver = testbed.world.slivers(testbed.world.node)
    assert len(sliver) == 2
    with testbed.client() as client:
        with testbed.world.node.write() as c:
            c.execute(t.slivers.update().values(desired="stopped"))
        with pytest.raises(SlicemgrError, match="exp/0 is not running"):
            client.slices.console("exp")
        with testbed.world.node.write() as c:
            c.execute(t.slivers.update().values(desired="running"))
        with testbed.store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == "node7").values(silent_since=utcnow()))
        with pytest.raises(SlicemgrError, match="node node7 does not answer"):
            client.slices.console("exp")
        with testbed.store.write() as c:
            c.execute(t.nodes.update().values(silent_since=None))
        with client.slices.console("exp") as channel:
            os.write(testbed.terminals.far, b"there")
            output(channel, b"there")


def test_only_root_orders_a_console(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order needs no token: who is not root, and the web process of a machine that has not joined, gets nothing."""
    config, [sliver, *_] = testbed.world.config, testbed.world.slivers(testbed.world.node)
    order = console_socket.order_packet(Order("eve", sliver, False))
    with console_socket.opened(console_socket.request(config.console_socket, order)):
        pass
    for weaken in ("is_from_root", "joined"):
        with monkeypatch.context() as patch:
            if weaken == "joined":
                patch.setattr(Config, "joined", False)
            else:
                patch.setattr(console_socket, weaken, lambda stream: False)
            with pytest.raises(SlicemgrError, match="token is unknown"):
                console_socket.opened(console_socket.request(config.console_socket, order))


def test_samples_of_another_host(testbed: Testbed) -> None:
    """They stay there: the service asks for them."""
    now, world = int(time.time()), testbed.world
    with testbed.store.read() as c:
        serial = c.scalar(sa.select(t.slivers.c.serial).where(t.slivers.c.idx == 1))
    assert serial is not None
    with world.node.write() as c:
        for at in range(now - 90, now, 30):
            measured = {**part(at, serial, cpu=60.0, charged=1), "node": LOCAL}
            samples.write(c, {**whole(at), "node": LOCAL}, [measured], {serial: "default"})
    with testbed.client() as client:
        answer = client.samples.of_slice("exp", columns="cpu")
        assert answer["slivers"][1]["series"]["cpu"] == [2.0] * 3 and answer["missing"] == []
        assert client.samples.of_node(NODE, columns="memory")["series"]["memory"]
        top = client.samples.latest()
        assert [(one["node"], one["index"], one["cpu"]) for one in top["slivers"]] == [(NODE, 1, 2.0)]
        assert NODE in [one["node"] for one in top["nodes"]]

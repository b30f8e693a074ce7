"""Connections that nodes open when they are asked: what a hostile node, or somebody without a key, gets from them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from bare_service import Service
from centre_and_node import IDENTITY, NODE, World, member
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection

from slicemgr.certificates import dial_tokens, image_tokens, requests
from slicemgr.certificates.authority import Authority
from slicemgr.errors import Busy, Code, Refused, SlicemgrError
from slicemgr.hub import signer
from slicemgr.ipc import console_socket, tunnel
from slicemgr.ipc.websocket import Channel
from slicemgr.model import Dial, DialPurpose
from slicemgr.policy import messages, node_answers
from slicemgr.policy.messages import BadMessage
from slicemgr.policy.node_answers import BadAnswer
from slicemgr.service.nodes import dials
from slicemgr.service.slices.consoles import RemoteConsole
from slicemgr.store import dials as orders
from slicemgr.store import tables as t
from slicemgr.store.console_tickets import Ticket
from slicemgr.store.updates import utcnow
from slicemgr.web import dials as web_dials
from slicemgr.web.dials import Dials
from slicemgr.web.refusals import Refusals
from slicemgr.web.thread_limits import Kind, ThreadLimits

OTHER = "node-eight"
_TIMEOUT = 30.0  # seconds


class Centre:
    """A service with two nodes that have keys."""

    def __init__(self, service: Service) -> None:
        self.service, self.store = service, service.store
        self.authority = signer.prepare(service.store, service.config.authority_dir)
        self.keys = {one: requests.new_key() for one in (IDENTITY, OTHER)}
        for name, identity in ((NODE, IDENTITY), ("node8", OTHER)):
            member(self.store, name, identity)
            self.certify(self.authority, identity)
            beat = {"identity": identity, "incarnation": "1", "sequence": 1, "version": "1", "beat_at": utcnow()}
            with self.store.write() as c:
                c.execute(t.links.insert().values(beat))
        self.limits = ThreadLimits(service.config.web, Refusals())

    def certify(self, authority: Authority, identity: str) -> None:
        public = requests.public_key(requests.new_request(self.keys[identity]))
        issued = authority.node(identity, public, utcnow())
        with self.store.write() as c:
            mine = t.certificates.c.identity == identity
            c.execute(t.certificates.update().where(mine).values(certificate=issued.certificate))

    def dials(self, patience: float = _TIMEOUT) -> Dials:
        return Dials(self.service.config, self.store, self.limits, patience)

    def refusal(self, text: str) -> Code | None:
        """Of the token of a connection."""
        try:
            dials.judge(self.store, text, utcnow())
        except Refused as error:
            return error.code
        return None


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    with Service(tmp_path) as service:
        yield Centre(service)


CONSOLE = RemoteConsole(Ticket("admin", "s-0"), "exp/0", NODE)
SECRET = "0123456789abcdef" * 4


def ends() -> tuple[Channel, Channel, socket.socket, socket.socket]:
    """The two ends of a WebSocket after the handshake, and of a socket pair as an agent has it."""
    channels = []
    for side, sock in zip((ConnectionType.SERVER, ConnectionType.CLIENT), socket.socketpair(), strict=True):
        protocol = WSConnection(side)
        protocol.connection = Connection(side)
        channels.append(Channel(sock, protocol))
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.settimeout(_TIMEOUT)
    return channels[0], channels[1], near, far


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_the_key_of_the_node_makes_the_token(centre: Centre) -> None:
    good = dial_tokens.sign(centre.keys[IDENTITY], IDENTITY, SECRET)
    assert centre.refusal(good) is None
    forged = dial_tokens.sign(centre.keys[OTHER], IDENTITY, SECRET)
    identity, _, signature = good.split(".")
    image = image_tokens.sign(centre.keys[IDENTITY], IDENTITY, SECRET, utcnow())
    wrong = {
        "another key": forged,
        "another secret": f"{identity}.{SECRET[::-1]}.{signature}",
        "another node": f"{OTHER}.{SECRET}.{signature}",
        "no node": f"node-none.{SECRET}.{signature}",
        "for an image": f"{identity}.{SECRET}.{image.rpartition('.')[2]}",
        "no token": "x" * 3000,
        "empty": "",
    }
    assert {name: centre.refusal(text) for name, text in wrong.items()} == dict.fromkeys(wrong, Code.DENIED)
    with centre.store.write() as c:
        c.execute(t.certificates.update().where(t.certificates.c.identity == IDENTITY).values(revoked_at=utcnow()))
    assert centre.refusal(good) is Code.DENIED
    assert centre.refusal(dial_tokens.sign(centre.keys[OTHER], OTHER, SECRET)) is None


# --- which connection a node gets -----------------------------------------------------------------------------------


def opening(centre: Centre, made: Dials, answers: list[Any]) -> threading.Thread:
    """A user who opens a console on a node. answers: gets the first bytes of the sliver, or the error."""

    def work() -> None:
        try:
            with made.console(CONSOLE) as stream:
                stream.settimeout(_TIMEOUT)
                answers.append(console_socket.parse_output(stream.recv(tunnel.LARGEST)))
        except SlicemgrError as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ordered(centre: Centre) -> Dial:
    """The order that the hub sends to the node."""
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end:
        for identity, dial in orders.take(centre.store, utcnow()):
            assert identity == IDENTITY
            return dial
    raise AssertionError("nothing was ordered")


@pytest.mark.parametrize("open_to_all", [False, True])
def test_another_node_does_not_get_the_connection(
    centre: Centre, open_to_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile node that has learnt the secret of another; with the control it gets the console of the user."""
    made, answers = centre.dials(), list[Any]()
    thread = opening(centre, made, answers)
    dial = ordered(centre)
    assert (dial.purpose, dial.user, dial.sliver) == (DialPurpose.CONSOLE, "admin", "s-0")
    channel, remote, near, far = ends()
    with channel, remote, near, far:
        remote.send(tunnel.frame(console_socket.OPENED) + tunnel.frame(console_socket.data_packet(b"hello")))
        if open_to_all:
            made._waiting[dial.secret].identity = OTHER
        else:
            for identity, secret in ((OTHER, dial.secret), (IDENTITY, SECRET)):
                with pytest.raises(Refused) as caught:
                    made.serve(identity, secret, lambda: channel)
                assert caught.value.code is Code.DENIED
            assert not answers and thread.is_alive(), "the attempt does not use up the secret"
        taker = OTHER if open_to_all else IDENTITY
        server = threading.Thread(target=made.serve, args=(taker, dial.secret, lambda: channel), daemon=True)
        server.start()
        thread.join(_TIMEOUT)
        server.join(_TIMEOUT)
        assert answers == [b"hello"] and not server.is_alive()
        with pytest.raises(Refused):
            made.serve(taker, dial.secret, lambda: channel)  # once
    assert not made._waiting and not made._open


def test_a_node_that_does_not_connect(centre: Centre) -> None:
    """The user gets an answer, and nothing remains of the request."""
    made, answers = centre.dials(patience=0.05), list[Any]()
    opening(centre, made, answers).join(_TIMEOUT)
    assert answers[0].code is Code.UNAVAILABLE and answers[0].message == "node node7 does not answer"
    assert not made._waiting
    with centre.store.write() as c:
        c.execute(t.dials.update().values(created_at=utcnow() - orders.VALID))
    assert orders.take(centre.store, utcnow()) == [] and centre.service.count("dials") == 0


def test_connections_of_a_node_have_a_limit(centre: Centre) -> None:
    """Of all threads, so many wait for one node that others keep theirs."""
    with ExitStack() as stack:
        for _ in range(centre.limits.most[Kind.DIAL] // 2):
            stack.enter_context(centre.limits.held(Kind.DIAL, NODE))
        with pytest.raises(Busy) as caught, centre.dials().console(CONSOLE):
            pass
        assert "the node already has" in caught.value.message
        assert centre.service.count("dials") == 0
        with centre.limits.held(Kind.DIAL, "node8"):
            pass


# --- what a node sends ----------------------------------------------------------------------------------------------


def spliced(sent: bytes, *, checked: bool = True) -> tuple[list[bytes], int]:
    """The packets that reach the user's side, and the close code that the node gets."""
    channel, remote, near, far = ends()
    with channel, remote, near, far:
        remote.send(sent)
        remote.flush()
        check = console_socket.checked_output if checked else bytes
        work = threading.Thread(target=tunnel.splice, args=(channel, far, check), daemon=True)
        work.start()
        if checked:
            remote.close()
        found = []
        with suppress(TimeoutError):
            near.settimeout(0.3 if not checked else _TIMEOUT)
            while (packet := near.recv(tunnel.LARGEST)) != b"":
                found.append(packet)
                if packet[:1] == b"e":
                    break
        near.close()
        work.join(_TIMEOUT)
        assert not work.is_alive()
        remote.receive()
        return found, 0 if remote.ended is None else remote.ended.code


EVIL = json.dumps({"code": "failed", "message": "\x1b]0;owned\x07" + "A" * 3000, "hint": ["x"]}).encode()


def test_the_texts_of_an_error_are_bounded_and_printable() -> None:
    """With the control, they reach the terminal of the user as they are."""
    [packet], _ = spliced(tunnel.frame(b"e" + EVIL))
    error = console_socket.parse_output(packet)
    assert isinstance(error, SlicemgrError)
    assert error.message == "?]0;owned?" + "A" * 290 and error.hint == ""
    [packet], _ = spliced(tunnel.frame(b"e" + EVIL), checked=False)
    assert b"owned" in packet and len(packet) > 3000


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        (tunnel.LARGEST + 1).to_bytes(4, "big") + b"d" * (tunnel.LARGEST + 1),
        tunnel.frame(b"x"),
        tunnel.frame(b"d"),
        tunnel.frame(b"w\x00\x10\x00\x10"),
        tunnel.frame(b"oo"),
        tunnel.frame(b"e"),
        tunnel.frame(b"e[]"),
        tunnel.frame(b"e" + b"[" * 4000),
        tunnel.frame(b"e" + b" " * 5000 + b"{}"),
    ],
)
def test_what_no_agent_sends_ends_the_connection(sent: bytes) -> None:
    channel, remote, near, far = ends()
    with channel, remote, near, far:
        remote.send(tunnel.frame(b"dfirst") + sent)
        tunnel.splice(channel, far, console_socket.checked_output)
        far.close()
        found = [near.recv(tunnel.LARGEST) for _ in range(2)]
        remote.receive()
        assert found in ([b"dfirst", b""], [b"", b""])
        assert remote.ended is not None and remote.ended.code == 4000 + Code.INVALID.status


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.integers(1, 50))
def test_packets_arrive_whole(packets: list[bytes], step: int) -> None:
    data, reader, found = b"".join(map(tunnel.frame, packets)), tunnel.Packets(), list[bytes]()
    for at in range(0, len(data), step):
        found += reader.add(data[at : at + step])
    assert found == packets


def test_a_user_who_does_not_read_stops_the_node() -> None:
    """What a node sends is not collected without a limit."""
    channel, remote, near, far = ends()
    with channel, remote, near, far:
        work = threading.Thread(target=tunnel.splice, args=(channel, far), daemon=True)
        work.start()
        packet, sent, idle = tunnel.frame(b"d" + bytes(console_socket.CHUNK)), 0, 0
        while idle < 20:
            if remote.pending:
                remote.flush()
                idle += 1
                threading.Event().wait(0.01)
            else:
                remote.send(packet)
                sent, idle = sent + len(packet), 0
        assert sent < 4 << 20
        near.close()
        work.join(_TIMEOUT)
        assert not work.is_alive()


# --- questions ------------------------------------------------------------------------------------------------------


def asking(centre: Centre, sent: list[bytes], *, endless: bool = False, ends_it: bool = True) -> bytes | SlicemgrError:
    """What the service gets from a node that answers a question with these packets."""
    made, answers = centre.dials(), list[Any]()

    def work() -> None:
        try:
            answers.append(made.ask(NODE, b"{}"))
        except SlicemgrError as error:
            answers.append(error)

    asker = threading.Thread(target=work, daemon=True)
    asker.start()
    dial = ordered(centre)
    assert dial.purpose is DialPurpose.QUERY
    channel, remote, near, far = ends()
    with channel, remote, near, far:
        server = threading.Thread(target=made.serve, args=(IDENTITY, dial.secret, lambda: channel), daemon=True)
        server.start()
        remote.send(tunnel.frame(console_socket.OPENED))
        arrived = b""
        while len(arrived) < len(tunnel.frame(b"d{}")) and remote.ended is None:
            arrived += remote.receive()
        assert arrived == tunnel.frame(b"d{}") or not ends_it  # a short time may have ended before
        for packet in sent:
            remote.send(tunnel.frame(packet))
        while endless and asker.is_alive():
            remote.flush()
            if not remote.pending:
                remote.send(tunnel.frame(b"d" * tunnel.LARGEST))
        if ends_it:
            remote.close()
        asker.join(_TIMEOUT)
        remote.close()
        server.join(_TIMEOUT)
        assert not server.is_alive() and not made._waiting
    return cast(bytes | SlicemgrError, answers[0])


def test_the_answer_to_a_question(centre: Centre) -> None:
    assert asking(centre, [b"dfirst", b"d second"]) == b"first second"
    refused = asking(centre, [console_socket.error_packet(Refused(Code.INVALID, "too large"))])
    assert isinstance(refused, SlicemgrError) and refused.message == "too large"


def test_an_answer_is_waited_for_so_long_and_read_so_far(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_dials, "_ASKED", _TIMEOUT)
    monkeypatch.setattr(web_dials, "_ANSWER", 0.3)
    silent = asking(centre, [b"dfirst"], ends_it=False)
    assert isinstance(silent, SlicemgrError) and silent.message == "node node7 does not answer"
    monkeypatch.setattr(web_dials, "_ANSWER", _TIMEOUT)
    monkeypatch.setattr(node_answers, "LARGEST", 200_000)
    endless = asking(centre, [], endless=True)
    assert isinstance(endless, bytes) and 200_000 < len(endless) < 300_000
    with pytest.raises(BadAnswer):
        node_answers.tables(endless)


# --- orders ---------------------------------------------------------------------------------------------------------


def test_an_order_arrives_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        with world.centre.write() as c:
            dial = Dial(SECRET, DialPurpose.SCREEN, "bob", "exp-0")
            orders.ask(c, NODE, dial, utcnow())
            orders.ask(c, "node1", Dial(SECRET[::-1], DialPurpose.QUERY), utcnow())  # has no link
        world.hub.step(woken=True)
        world.hub.step(woken=True)
        assert [messages.kind(one) for one in world.to_node] == [messages.DIAL]
        world.deliver_to_node()
        assert world.dials == [dial] and world.service.count("dials") == 0


@pytest.mark.parametrize(
    "fields",
    [{"secret": "x"}, {"secret": None}, {"purpose": "shell"}, {"user": "a\nb"}, {"sliver": "x" * 201}, {"v": 2}],
)
def test_an_order_of_another_form_is_dropped(fields: dict[str, object]) -> None:
    body = messages.dial(Dial(SECRET, DialPurpose.CONSOLE, "bob", "exp-0"))
    assert messages.parse_dial(body).user == "bob"
    with pytest.raises(BadMessage):
        messages.parse_dial(json.dumps({**json.loads(body), **fields}))

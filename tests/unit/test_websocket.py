"""The frames between slicectl and the service: both ends over a socket pair, and invalid WebSockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from wsproto import ConnectionType, WSConnection, events
from wsproto.connection import Connection

from slicemgr.errors import Code, Failed, Refused
from slicemgr.ipc import websocket
from slicemgr.ipc.websocket import Channel, Closed

HEADERS = [
    ("Host", "h"),
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", f"{websocket.PROTOCOL}, token.abc"),
    ("X-Other", "\xff"),
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.fixture
def ends(pair: tuple[socket.socket, socket.socket]) -> tuple[Channel, Channel]:
    """Client and service after their handshake."""
    return Channel(pair[0], _open(ConnectionType.CLIENT)), Channel(pair[1], _open(ConnectionType.SERVER))


def _open(side: ConnectionType) -> WSConnection:
    protocol = WSConnection(side)
    protocol.connection = Connection(side)
    return protocol


def test_a_handshake_carries_the_token_and_what_is_said_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    def serve() -> None:
        told = pair[1].recv(65536).decode()
        lines = [line.partition(": ") for line in told.splitlines()[1:] if line]
        protocol, token = websocket.accept([(name, value) for name, _, value in lines], "/x")
        answer = protocol.send(events.AcceptConnection(subprotocol=websocket.PROTOCOL))
        pair[1].sendall(answer + protocol.send(events.BytesMessage(data=token.encode())))

    service = threading.Thread(target=serve)
    service.start()
    channel = websocket.connect(pair[0], "h:1", "/x", "abc_-")
    service.join()
    assert channel.receive() == b"abc_-"


def test_a_handshake_that_brings_the_end_along(pair: tuple[socket.socket, socket.socket]) -> None:
    def serve() -> None:
        lines = [line.partition(": ") for line in pair[1].recv(65536).decode().splitlines()[1:] if line]
        protocol, _ = websocket.accept([(name, value) for name, _, value in lines], "/x")
        said = protocol.send(events.AcceptConnection(subprotocol=websocket.PROTOCOL))
        said += protocol.send(events.BytesMessage(data=b"last words"))
        pair[1].sendall(said + protocol.send(events.CloseConnection(code=4409, reason="it has stopped")))
        pair[1].close()

    service = threading.Thread(target=serve)
    service.start()
    channel = websocket.connect(pair[0], "h:1", "/x", "abc")
    service.join()
    assert channel.receive() == b"last words"
    assert channel.ended == Closed(4409, "it has stopped")


def test_bytes_both_ways(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    assert client.receive() == b""
    client.send(b"\x00\xff")
    client.send(b"more")
    assert service.receive() == b"\x00\xffmore"
    service.send(b"x" * 100_000)
    received = b""
    while len(received) < 100_000:
        service.flush()
        received += client.receive()
    assert (received, service.pending, client.ended) == (b"x" * 100_000, 0, None)


def test_the_size_of_the_window_is_no_byte_of_the_console(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    client.resize(50, 160)
    client.send(b"typed")
    client.resize(24, 80)
    assert service.receive() == b"typed"
    assert service.window == (24, 80)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "resize",
        "[]",
        "null",
        '{"rows": 50}',
        '{"rows": 0, "columns": 80}',
        '{"rows": 24, "columns": 65536}',
        '{"rows": 24.5, "columns": 80}',
        '{"rows": true, "columns": true}',
        '{"rows": "24", "columns": "80"}',
        '{"rows": 24, "columns": 80}' + " " * 300,
        "[" * 100_000,
    ],
)
def test_a_text_that_is_no_size_is_passed_over(
    ends: tuple[Channel, Channel], pair: tuple[socket.socket, socket.socket], text: str
) -> None:
    client, service = ends
    client._queue(events.TextMessage(data=text))
    client.send(b"typed")
    received = b""
    while not received:
        client.flush()
        received += service.receive()
    assert (received, service.window, service.ended) == (b"typed", None, None)


def test_a_reader_that_is_slow_is_not_waited_for(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    while not service.pending:
        service.send(b"x" * 65536)
    service.drain(0.05)
    assert service.pending
    client.receive()
    service.flush()


def test_pings_are_answered_and_count_as_a_sign_of_life(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    service.heard = 0.0
    service.ping()
    assert client.receive() == b""
    assert service.receive() == b""
    assert service.heard > 0


@pytest.mark.parametrize("code", list(Code))
def test_the_reason_of_the_end_arrives_after_the_last_words(ends: tuple[Channel, Channel], code: Code) -> None:
    client, service = ends
    service.send(b"last words")
    service.close(Failed("it is so", code=code))
    assert client.receive() == b"last words"
    assert client.ended is not None
    error = client.ended.error("lost")
    assert error is not None and (error.code.exit_status, error.message) == (code.exit_status, "it is so")
    service.send(b"nobody hears this")
    assert service.receive() == b"" and service.ended is not None


def test_a_good_end_is_no_error(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    client.close()
    service.receive()
    assert service.ended == Closed(1000, "") and service.ended.error("lost") is None


def test_an_end_without_a_word(ends: tuple[Channel, Channel]) -> None:
    client, service = ends
    with closing(client._socket):
        pass
    service.receive()
    assert service.ended is not None
    error = service.ended.error("the connection broke")
    assert error is not None and (error.code, error.message) == (Code.UNAVAILABLE, "the connection broke")


def test_what_is_no_frame_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    service = Channel(pair[1], _open(ConnectionType.SERVER))
    pair[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert service.receive() == b"" and service.ended is not None and service.ended.code == 1002


@pytest.mark.parametrize("missing", [0, 1, 2, 3, 4, 5])
def test_a_request_that_is_no_console_s(missing: int) -> None:
    assert websocket.accept(HEADERS, "/x")[1] == "abc"
    with pytest.raises(Refused) as caught:
        websocket.accept([one for one in HEADERS if one != HEADERS[missing]], "/x")
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    "protocols", ["chat", websocket.PROTOCOL, "token.abc", f"{websocket.PROTOCOL}, token.a, token.b"]
)
def test_subprotocols_that_are_not_ours(protocols: str) -> None:
    with pytest.raises(Refused, match="Sec-WebSocket-Protocol"):
        websocket.accept([*HEADERS[:5], ("Sec-WebSocket-Protocol", protocols)], "/x")


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403, b"no"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"SSH-2.0-x\r\n", 0, b""),
        (b"", 0, b""),
    ],
)
def test_a_service_that_refuses(
    pair: tuple[socket.socket, socket.socket], answer: bytes, status: int, body: bytes
) -> None:
    pair[1].sendall(answer)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(websocket.Rejected) as caught:
        websocket.connect(pair[0], "h", "/x", "abc")
    assert (caught.value.status, caught.value.body) == (status, body)

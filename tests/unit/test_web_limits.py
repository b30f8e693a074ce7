"""Clients that send slowly, too much or from many addresses do not block others, with the real web process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import h11
import pytest
import web_process
from gunicorn.config import Config as GunicornConfig
from tenants import Tenants
from web_process import Web, until

from slicemgr.config import WebConfig
from slicemgr.errors import Busy, Code
from slicemgr.model import OperationState
from slicemgr.service.accounts import authentication as people
from slicemgr.service.accounts import tokens
from slicemgr.store import pending
from slicemgr.web.connection import Connection, Pace
from slicemgr.web.refusals import Refusals
from slicemgr.web.thread_limits import Kind, ThreadLimits

BOUND = 20.0  # seconds for a page, which takes some hundredths on an idle host
NEVER = 5.0  # seconds without an answer after which a control counts as blocked
FEW = {"threads": 8, "header_time": "1h", "body_time": "1h"}  # the protection is not a deadline
PART_OF_HEADER = b"GET /sign-in HTTP/1.1\r\nHost: x\r\nX-Slow: "
PART_OF_BODY = b'POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"user"'
UPLOAD = 8 << 20  # bytes that are announced


@pytest.fixture(scope="module", autouse=True)
def _one_database() -> Iterator[None]:
    """The database plays no part in this."""
    yield


def connect(web: Web, number: int = 1, data: bytes = b"") -> socket.socket:
    """A connection from a separate loopback address, 127.1.0.1 for the first, which only sends data."""
    place = f"127.1.{number >> 8}.{number & 255}"
    made = socket.create_connection(("127.0.0.1", web.port), timeout=60, source_address=(place, 0))
    made.sendall(data)
    return made


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of the answer. Raises OSError if the connection is lost."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    text = answer.read()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(text or b"null")


def refused(web: Web, reason: str) -> int:
    """The number of refusals in /metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {web.token}"})
        lines = connection.getresponse().read().decode().splitlines()
    found = [line for line in lines if line.startswith(f'slicemgr_web_refusals_total{{reason="{reason}"}}')]
    return int(float(found[0].rpartition(" ")[2]))


def upload_header(token: str, name: str, size: int = UPLOAD) -> bytes:
    head = f"POST /api/v1/images?name={name}&format=raw HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode()


# threads


def half_header(web: Web, number: int) -> socket.socket:
    return connect(web, number, PART_OF_HEADER)


def half_body(web: Web, number: int) -> socket.socket:
    return connect(web, number, PART_OF_BODY)


def half_chunk(web: Web, number: int) -> socket.socket:
    return connect(
        web, number, b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    )


def half_second_request(web: Web, number: int) -> socket.socket:
    """Sent along with a whole one."""
    return connect(web, number, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + PART_OF_HEADER)


def bare_line_feeds(web: Web, number: int) -> socket.socket:
    """Complete for one parser, half of a header for another."""
    return connect(web, number, b"GET /sign-in HTTP/1.1\nHost: x\n\n")


def stays_after_the_answer(web: Web, number: int) -> socket.socket:
    """A client that is notified of the close, and keeps its end open."""
    return connect(web, number, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def reads_nothing(web: Web, number: int) -> socket.socket:
    """More answers than the buffers on the way hold."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((f"127.1.0.{number}", 0))
    made.connect(("127.0.0.1", web.port))
    made.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 60)
    return made


ATTACKS = (half_header, half_body, half_chunk, half_second_request, bare_line_feeds, stays_after_the_answer)


def page_beside(attacks: tuple[Callable[[Web, int], socket.socket], ...], plain: bool) -> int:
    """The status of a page while thirty do each of these; 0: there is no answer in time."""
    with web_process.serving(plain=plain, **FEW) as web, ExitStack() as stack:
        assert web.page(60) == 200
        for place, attack in enumerate(attacks):
            for number in range(1, 31):
                stack.enter_context(attack(web, 100 * place + number))
        time.sleep(0.5)  # the server has accepted all of them
        return web.page(NEVER if plain else BOUND)


def test_who_sends_half_a_request_holds_no_thread() -> None:
    assert page_beside(ATTACKS, plain=False) == 200


@pytest.mark.parametrize("attack", [half_header, half_body, stays_after_the_answer])
def test_thirty_of_them_stop_gunicorns_own_worker(attack: Callable[[Web, int], socket.socket]) -> None:
    """The control, with the same eight threads and the same time."""
    assert page_beside((attack,), plain=True) == 0


def test_a_thousand_slow_connections_leave_pages_answering() -> None:
    """Each from another address, with a limit of 400: the slowest are closed. Each keeps sending byte by byte."""
    with web_process.serving(threads=8, connections=400, header_time="1h") as web, ExitStack() as stack:
        assert web.page(60) == 200
        held = [stack.enter_context(half_header(web, number)) for number in range(1, 1001)]
        for _ in range(5):
            for one in held:
                with contextlib.suppress(OSError):
                    one.send(b"x")
            assert [web.page(BOUND) for _ in range(4)] == [200] * 4
        assert refused(web, "connections") >= 600


def test_an_address_has_so_many_connections() -> None:
    with web_process.serving(threads=8, connections_per_address=20, header_time="1h") as web, ExitStack() as stack:
        held = [stack.enter_context(half_header(web, 1)) for _ in range(100)]
        status, headers, problem = answer_of(held[-1])
        assert (status, problem["code"], headers["retry-after"]) == (429, "too_many", "1")
        assert refused(web, "connections_per_address") == 80
        assert web.page(BOUND) == 200, "another address has its own"
        for one in held:
            one.close()
        until(lambda: _status(web, 1) == 200)


def _status(web: Web, number: int) -> int:
    with connect(web, number, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
        return answer_of(connection)[0]


def test_behind_a_proxy_the_forwarded_address_counts() -> None:
    """The proxy is one address with many connections; a header that the client wrote itself changes nothing."""
    with (
        web_process.serving(threads=8, proxies=1, connections_per_address=3, body_time="1h") as web,
        ExitStack() as stack,
    ):

        def forward(address: str) -> socket.socket:
            data = PART_OF_BODY.replace(b"Host: x", f"Host: x\r\nX-Forwarded-For: 9.9.9.9, {address}".encode())
            return stack.enter_context(connect(web, 1, data))

        held = [forward(f"192.0.2.{number}") for number in range(10) for _ in range(3)]
        assert answer_of(forward("192.0.2.3"))[0] == 429
        held[9].sendall(b" " * 1000)  # one of 192.0.2.3 ends with an error
        assert answer_of(held[9])[0] == 422

        def refused_again() -> bool:
            more = forward("192.0.2.3")
            more.sendall(b" " * 1000)
            return answer_of(more)[0] == 429

        until(lambda: not refused_again())


# time and rate


def page_meanwhile(web: Web, plain: bool) -> int:
    """The status of a page when clients have filled the buffers of all threads, which takes longer under load.

    plain: the control, which is repeated until it does not answer.
    """
    status = 200
    for _ in range(12 if plain else 1):
        time.sleep(4)
        status = web.page(NEVER if plain else BOUND)
        if status != 200:
            break
    return status


@pytest.mark.parametrize(("plain", "status"), [(False, 200), (True, 0)])
def test_who_takes_no_answer_in_gives_the_thread_back(plain: bool, status: int) -> None:
    """Sixteen for eight threads; the control is gunicorn's own worker."""
    with web_process.serving(plain=plain, threads=8, answer_time="1s") as web, ExitStack() as stack:
        assert web.page(60) == 200
        for number in range(1, 17):
            stack.enter_context(reads_nothing(web, number))
        assert page_meanwhile(web, plain) == status


@pytest.mark.parametrize(("plain", "status"), [(False, 200), (True, 0)])
def test_one_address_that_takes_no_answers_in_leaves_threads_to_others(plain: bool, status: int) -> None:
    with web_process.serving(plain=plain, threads=8, answer_time="1h") as web, ExitStack() as stack:
        assert web.page(60) == 200
        for _ in range(20):
            stack.enter_context(reads_nothing(web, 1))
        assert page_meanwhile(web, plain) == status


@pytest.fixture(scope="module")
def quick() -> Iterator[Web]:
    with web_process.serving(threads=8, header_time="1s", body_time="1s") as made:
        yield made


def test_a_header_has_a_deadline_that_bytes_do_not_put_off(quick: Web) -> None:
    with connect(quick, data=PART_OF_HEADER) as slow:
        slow.settimeout(0.2)
        for _ in range(300):
            with contextlib.suppress(OSError):
                slow.send(b"x")
            try:
                assert slow.recv(1, socket.MSG_PEEK), "it ended without an answer"
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("it may send for ever")
        slow.settimeout(60)
        status, _, problem = answer_of(slow)
    assert (status, problem["code"]) == (408, "too_slow") and "web.header_time" in problem["hint"]


def test_who_says_nothing_is_left_without_a_word(quick: Web) -> None:
    with connect(quick) as silent:
        assert silent.recv(1) == b""


@pytest.mark.parametrize("data", [PART_OF_BODY, PART_OF_BODY.replace(b"1000", b"3000000")])
def test_a_body_that_stops_is_answered(quick: Web, data: bytes) -> None:
    with connect(quick, data=data) as slow:
        status, _, problem = answer_of(slow)
    assert (status, problem["code"]) == (408, "too_slow") and "web.body_least" in problem["hint"]


def test_an_upload_that_trickles_is_answered_and_leaves_nothing(quick: Web) -> None:
    with connect(quick, data=upload_header(quick.token, "trickle") + bytes(100_000)) as slow:
        slow.settimeout(0.2)
        for _ in range(300):
            with contextlib.suppress(OSError):
                slow.send(b"x")
            try:
                slow.recv(1, socket.MSG_PEEK)
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("it may trickle for ever")
        slow.settimeout(60)
        status, _, problem = answer_of(slow)
    assert (status, problem["code"]) == (408, "too_slow")
    until(lambda: not quick.spooled())


def test_an_upload_that_is_fast_enough_arrives(quick: Web) -> None:
    """In parts, with pauses, for longer than the time limit of one part."""
    data, size = os.urandom(UPLOAD // 8), UPLOAD
    with connect(quick, data=upload_header(quick.token, "steady", size)) as sender:
        for _ in range(8):
            sender.sendall(data)
            time.sleep(0.2)
        status, _, answer = answer_of(sender)
    assert status == 202 and answer["image"]["name"] == "steady"


# uploads and streams


def member(web: Web, name: str) -> str:
    """The token of another admin."""
    assert web.ask("POST", "/api/v1/users", {"name": name, "admin": True})[0] == 201
    by = people.account(web.service.store, name)
    return tokens.create(web.service.store, tokens.wanted({}, web.service.config, label="x"), by)[0]


@pytest.mark.parametrize(("share", "status"), [(2, 202), (100, 503)])
def test_one_members_slow_uploads_leave_room_for_another_s(share: int, status: int) -> None:
    """In the control a user may have as many uploads as there are."""
    with (
        web_process.serving(threads=8, uploads=4, uploads_per_user=share, body_time="1h") as web,
        ExitStack() as stack,
    ):
        other = member(web, "ann")
        for number in range(6):
            slow = connect(web, 1, upload_header(web.token, f"slow{number}") + bytes(1 << 20))
            stack.enter_context(slow)
            wanted = min(share, 4)
            if number < wanted:
                until(lambda wanted=number + 1: len(web.spooled()) == wanted)  # type: ignore[misc]
                continue
            refusal, headers, problem = answer_of(slow)
            assert refusal == (429 if share == 2 else 503) and int(headers["retry-after"]) > 0
            assert problem["code"] == ("too_many" if share == 2 else "unavailable")
        with connect(web, 2, upload_header(other, "quick", 5 << 20) + os.urandom(5 << 20)) as sender:
            assert answer_of(sender)[0] == status
        assert web.page(BOUND) == 200
        assert refused(web, "uploads_per_user" if share == 2 else "uploads") >= 2


@pytest.mark.parametrize(("share", "status"), [(2, 200), (100, 503)])
def test_one_members_followers_leave_room_for_another_s(share: int, status: int) -> None:
    with web_process.serving(threads=16, streams_per_user=share) as web, ExitStack() as stack:
        other = member(web, "ann")
        id_ = web.ask("POST", "/api/v1/slices", web.service.request("followed"))[1]["operation"]["id"]

        def follow(token: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
            stack.callback(connection.close)
            connection.request("GET", f"/api/v1/operations/{id_}/events", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status

        assert [follow(web.token) for _ in range(5)] == [200] * min(share, 4) + [429 if share == 2 else 503] * (
            5 - min(share, 4)
        )
        assert follow(other) == status


def test_requests_that_wait_leave_threads_to_others() -> None:
    """More wait than there are threads; those without room are answered at once."""
    with web_process.serving(threads=8) as web:
        id_ = web.ask("POST", "/api/v1/slices", web.service.request("waited"))[1]["operation"]["id"]
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(web.ask, "GET", f"/api/v1/operations/{id_}?wait=50") for _ in range(20)]
            until(lambda: sum(one.done() for one in waiting) == 14)
            assert web.page(BOUND) == 200
            web.service.record(pending.OperationStarted(id_), pending.OperationEnded(id_, OperationState.DONE))
            assert {one.result()[0] for one in waiting} == {200}


def test_places_are_counted_together_and_given_back_once() -> None:
    limits = ThreadLimits(WebConfig(threads=16, uploads=8, uploads_per_user=3, streams_per_user=5), Refusals())
    releases = [limits.acquire(Kind.CONSOLE, "bob") for _ in range(5)]
    for kind in (Kind.CONSOLE, Kind.FOLLOWER):
        with pytest.raises(Busy) as caught:
            limits.acquire(kind, "bob")
        assert caught.value.code is Code.TOO_MANY
    releases += [limits.acquire(Kind.FOLLOWER, f"u{number}") for number in range(4)]
    releases += [limits.acquire(Kind.WAIT, "bob") for _ in range(5)]
    with pytest.raises(Busy) as caught:
        limits.acquire(Kind.UPLOAD, "carol")
    assert caught.value.code is Code.UNAVAILABLE, "two of sixteen threads are for all other requests"
    for one in (*releases, *releases):
        one()
    for _ in range(3):
        with ExitStack() as stack, pytest.raises(Busy):
            for _ in range(3):
                stack.enter_context(limits.held(Kind.UPLOAD, "bob"))
            limits.acquire(Kind.UPLOAD, "bob")
    assert not limits._by_user and not limits._taken.total()


# large requests


@pytest.mark.parametrize("size", [5 << 20, 32 << 20])
def test_json_that_is_too_large_is_answered_while_it_is_sent(quick: Web, size: int) -> None:
    """As most clients do, the whole of it is sent before the answer is read."""
    status, answer = quick.ask("POST", "/api/v1/slices", b'{"name": "%s"}' % (b"x" * size))
    assert (status, answer["code"]) == (413, "invalid")
    assert quick.page(BOUND) == 200


def test_gunicorns_own_worker_loses_that_answer() -> None:
    """The control."""
    with web_process.serving(plain=True, threads=8) as web, pytest.raises(OSError):
        web.ask("POST", "/api/v1/slices", b'{"name": "%s"}' % (b"x" * (32 << 20)))


def test_what_is_kept_of_incomplete_requests_has_a_bound() -> None:
    with web_process.serving(threads=8, buffers="8M", body_time="1h") as web, ExitStack() as stack:
        head = b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
        held = [stack.enter_context(connect(web, number, head + bytes(3_500_000))) for number in range(1, 4)]
        until(lambda: refused(web, "buffers") == 1)
        (answered,), _, _ = select.select(held, [], [], 60)  # the oldest for the server, which may read the third first
        assert answer_of(answered)[0] == 503
        assert web.ask("POST", "/api/v1/slices", web.service.request("kept"))[0] == 202


# allowed behaviour of clients


def test_requests_one_after_the_other_on_a_connection(quick: Web) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(quick, data=one * 3) as pipelined, pipelined.makefile("rb") as lines:
        assert [line for line in lines_of(lines, 3) if line.startswith(b"HTTP")] == [b"HTTP/1.1 200 OK\r\n"] * 3
        for byte in one:
            pipelined.sendall(bytes([byte]))
        assert lines.readline() == b"HTTP/1.1 200 OK\r\n"


def lines_of(lines: Any, answers: int) -> Iterator[bytes]:
    """The lines of several answers, without their bodies."""
    for _ in range(answers):
        length = 0
        while (line := lines.readline()) not in (b"\r\n", b""):
            length = int(line.split()[1]) if line.lower().startswith(b"content-length") else length
            yield line
        lines.read(length)


def test_a_body_in_chunks_and_one_that_waits_for_leave(quick: Web) -> None:
    body = b'{"user": "nobody", "password": "is not this"}'
    head = b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\n"
    with connect(quick, data=head + b"Transfer-Encoding: chunked\r\n\r\n") as chunks:
        for part in (body[:10], body[10:]):
            chunks.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        chunks.sendall(b"0\r\n\r\n")
        assert answer_of(chunks)[0] == 401
    with connect(quick, data=head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)) as polite:
        assert polite.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        polite.sendall(body)
        assert answer_of(polite)[0] == 401


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"x" * 100_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 9000,
    ],
)
def test_what_is_no_http_is_answered_as_such(quick: Web, data: bytes) -> None:
    with connect(quick, data=data + b"\r\n\r\n") as connection:
        status, _, problem = answer_of(connection)
    assert status in (400, 431) and problem["code"] == "invalid"


REQUESTS = (
    b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
)


PIECES = (b"\r\n", b"\n", b":", b"-1", b"9" * 30, b"\0", b" ")


def test_whatever_comes_the_event_loop_goes_on() -> None:
    """It raises only errors that the loop answers with 400; complete requests are recognized."""
    chance, cfg, pace, seen = random.Random(1), GunicornConfig(), Pace(WebConfig()), Counter[bool]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(4000):
            text = bytearray(REQUESTS[number % len(REQUESTS)])
            for _ in range(chance.randrange(3)):
                at = chance.randrange(len(text))
                text[at : at + chance.randrange(4)] = chance.choice(
                    (b"\r\n", b"\n", b":", b"-1", b"9" * 30, b"\0", b" ")
                )
            connection, cut = Connection(cfg, ours, ("192.0.2.1", 1), ("", 0), pace), chance.randrange(1, len(text))
            try:
                seen[connection.feed(bytes(text[:cut])) or connection.feed(bytes(text[cut:]) or b"x")] += 1
            except h11.ProtocolError:
                seen[False] += 1
    assert seen[True] > 1000 and seen[False] > 1000
    for request in REQUESTS:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connection = Connection(cfg, ours, ("192.0.2.1", 1), ("", 0), pace)
            assert [connection.feed(request[at : at + 1]) for at in range(len(request))][-1]


def test_limits_that_no_service_could_run_with(tmp_path: Any) -> None:
    from slicemgr.config import load
    from slicemgr.errors import Refused

    for line in ("connections = 0", 'body_time = "0s"', 'header_time = "10ms"', "uploads_per_user = 0"):
        file = tmp_path / "slicemgr.toml"
        file.write_text(f"[web]\n{line}\n")
        with pytest.raises(Refused) as caught:
            load(file)
        assert caught.value.field == f"web.{line.split()[0]}"


def test_refused_sign_ins_are_counted(tmp_path: Any) -> None:
    from slicemgr.config import PeopleConfig

    people = PeopleConfig(failures=1, delay=timedelta(hours=1), delay_longest=timedelta(hours=1))
    with Tenants(tmp_path, people=people) as tenants:
        client = tenants.app.test_client()
        for _ in range(3):
            client.post("/api/v1/login", json={"user": "bob", "password": "is not this"})
        assert tenants.app.extensions["slicemgr"].refusals.count("sign_in") == 2

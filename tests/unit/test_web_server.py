"""The web process as in production: gunicorn, an unprivileged user, real sockets on the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import web_process
from bare_service import Service
from web_process import USER, Web, until

from slicemgr.client import Client
from slicemgr.errors import Code, Refused
from slicemgr.ipc import console_socket, unix_socket, websocket
from slicemgr.model import OperationState
from slicemgr.service.nodes import images
from slicemgr.store import pending


@pytest.fixture(scope="module")
def web(both_stores: str) -> Iterator[Web]:
    with web_process.serving(threads=16) as made:
        yield made


def _status(pid: int) -> dict[str, list[str]]:
    lines = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: values.split() for name, values in lines}


def test_no_process_of_it_is_root_or_can_be_again(web: Web) -> None:
    pid = web.process.pid or 0
    path = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: path.read_text())  # gunicorn listens before it has a worker
    children = path.read_text().split()
    for one in (pid, *map(int, children)):
        status = _status(one)
        assert status["Uid"] == status["Gid"] == [str(USER)] * 4
        assert status["Groups"] == []
        assert int(status["CapEff"][0], 16) == int(status["CapPrm"][0], 16) == 0


def test_a_request_reaches_the_rows_that_the_agent_reads(web: Web, both_stores: str) -> None:
    status, answer = web.ask("POST", "/api/v1/slices", web.service.request("real"))
    assert (status, answer["slice"]["state"]) == (202, "creating")
    assert "real" in {row.sliver.slice_name for row in web.service.rows()}
    folder = web.service.config.node.state_dir / "db"
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "web.key"]
    assert {path.stat().st_uid for path in files} == ({USER} if both_stores == "sqlite" else set())
    key = (folder / "web.key").stat()
    assert (key.st_uid, key.st_mode & 0o777, key.st_size) == (USER, 0o600, 32), "nobody else signs cookies"


def test_waiting_requests_neither_hold_the_database_nor_the_others(web: Web) -> None:
    """More wait than half of the threads; other requests are answered, and the end is reported to all."""
    id_ = web.ask("POST", "/api/v1/slices", web.service.request("waited"))[1]["operation"]["id"]
    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(web.ask, "GET", f"/api/v1/operations/{id_}?wait=50") for _ in range(10)]
        assert web.ask("GET", "/api/v1/slices")[0] == 200
        assert web.ask("DELETE", "/api/v1/slices/waited")[0] == 202
        assert not any(one.done() for one in waiting)
        web.service.record(pending.OperationStarted(id_), pending.OperationEnded(id_, OperationState.DONE))
        assert {one.result()[1]["state"] for one in waiting} == {"done"}


def test_news_are_told_before_the_end(web: Web) -> None:
    operation = web.ask("POST", "/api/v1/slices", web.service.request("news"))[1]["operation"]
    path = f"/api/v1/operations/{operation['id']}?wait=50&seen={operation['version']}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(web.ask, "GET", path)
        web.service.record(pending.StepSeen(operation["id"], "", "root", OperationState.RUNNING))
        seen = waiting.result()[1]
    assert (seen["state"], [step["name"] for step in seen["steps"]]) == ("queued", ["root"])


class Follower:
    """Follows an operation as a browser does."""

    def __init__(self, web: Web, id: str, seen: int | None = None, token: str = "") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
        headers = {"Authorization": f"Bearer {token or web.token}"}
        if seen is not None:
            headers["Last-Event-ID"] = str(seen)
        self.connection.request("GET", f"/api/v1/operations/{id}/events", headers=headers)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def next(self) -> dict[str, str]:
        """The fields of the next event; that of a comment is named ""; {} at the end."""
        fields: dict[str, str] = {}
        while (line := self.answer.readline().decode().rstrip("\n")) or not (fields or self.answer.isclosed()):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@contextlib.contextmanager
def following(web: Web, id: str, seen: int | None = None, token: str = "") -> Iterator[Follower]:
    follower = Follower(web, id, seen, token)
    try:
        yield follower
    finally:
        follower.close()


def _asked(web: Web, name: str) -> str:
    return str(web.ask("POST", "/api/v1/slices", web.service.request(name))[1]["operation"]["id"])


def test_an_operation_is_followed_to_its_end(web: Web) -> None:
    id_ = _asked(web, "followed")
    with following(web, id_) as follower:
        assert follower.answer.headers["Content-Type"].startswith("text/event-stream")
        assert int(follower.next()["retry"]) > 0
        first = follower.next()
        assert first["event"] == "operation" and json.loads(first["data"])["state"] == "queued"
        web.service.record(pending.StepSeen(id_, "", "root", OperationState.RUNNING))
        step = follower.next()
        assert [one["name"] for one in json.loads(step["data"])["steps"]] == ["root"]
        assert int(step["id"]) > int(first["id"])
        web.service.record(pending.OperationEnded(id_, OperationState.DONE))
        last, end = follower.next(), follower.next()
        assert json.loads(last["data"])["state"] == "done"
        assert (end["event"], end["id"]) == ("end", last["id"]) and json.loads(end["data"]) == {"state": "done"}
        assert follower.answer.read() == b""
    with following(web, id_, int(step["id"])) as again:
        again.next()
        assert again.next()["id"] == end["id"], "who missed the end is told"
    with following(web, id_, int(end["id"])) as again:
        assert again.status == 204, "who did not need not come again"


def test_who_may_no_longer_see_it_is_told_no_more(web: Web) -> None:
    token = web.ask("POST", "/api/v1/tokens", {"label": "x"})[1]
    id_ = _asked(web, "revoked")
    with following(web, id_, token=token["token"]) as follower:
        follower.next(), follower.next()
        web.ask("DELETE", f"/api/v1/tokens/{token['id']}")
        web.service.record(pending.StepSeen(id_, "", "root", OperationState.RUNNING))
        gone = follower.next()
        assert gone["event"] == "gone" and json.loads(gone["data"])["code"] == "unauthenticated"
        assert follower.answer.read() == b""


def test_followers_leave_room_and_make_room(web: Web) -> None:
    """16 threads, a quarter of them for followers; more are refused until one ends."""
    id_ = _asked(web, "many")
    with contextlib.ExitStack() as stack:
        all_of_them = [stack.enter_context(following(web, id_)) for _ in range(4)]
        for one in all_of_them:
            one.next(), one.next()
        with following(web, id_) as late:
            assert late.status == 503 and json.loads(late.answer.read())["code"] == "unavailable"
        assert web.ask("GET", "/api/v1/slices")[0] == 200
        all_of_them[0].close()
        for number in range(100):
            web.service.record(pending.StepSeen(id_, "", f"step {number}", OperationState.RUNNING))
            follower = stack.enter_context(following(web, id_))
            if follower.status == 200:
                break
            time.sleep(0.05)
        else:
            pytest.fail("a follower that left makes no room")


def test_silence_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slicemgr.web import create_app, follow

    monkeypatch.setattr(follow, "HEARTBEAT", 0.05)
    with Service(tmp_path) as service:
        id_ = service.create()
        client = create_app(service.config, service.store).test_client()
        path = f"/api/v1/operations/{id_}/events"
        headers = {"Authorization": f"Bearer {service.token()}"}
        with contextlib.closing(client.get(path, headers=headers, buffered=False)) as answer:
            told = [next(answer.response) for _ in range(4)]  # type: ignore[call-overload]
        assert [one.split(b"\n")[0].split(b" ")[0] for one in told] == [b"retry:", b"id:", b":", b":"]
        for wrong in ("x", "-1", "9" * 20, "1.0"):
            answer = client.get(path, headers={**headers, "Last-Event-ID": wrong})
            assert answer.status_code == 422 and answer.get_json(force=True)["field"] == "Last-Event-ID"


def test_an_image_is_spooled_for_the_agent(web: Web) -> None:
    data = os.urandom(3 << 20)
    headers = {"Content-Type": "application/octet-stream"}
    status, answer = web.ask("POST", "/api/v1/images?name=big&format=raw", data, headers)
    assert status == 202
    (name,) = web.spooled()
    assert name == f"{answer['image']['sha256']}.raw"
    assert (web.service.config.uploads_dir / name).read_bytes() == data
    again = web.ask("POST", "/api/v1/images?name=other&format=raw", data, headers)
    assert (again[0], again[1]["operation"]["id"]) == (202, answer["operation"]["id"])
    web.service.record(pending.ImageGone(answer["image"]["sha256"]))
    (web.service.config.uploads_dir / name).unlink()


def test_an_upload_whose_sender_goes_away_leaves_nothing(web: Web) -> None:
    before = web.service.count("images")
    with socket.create_connection(("127.0.0.1", web.port)) as sender:
        head = f"POST /api/v1/images?name=cut&format=raw HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.token}\r\n"
        sender.sendall(f"{head}Content-Length: {8 << 20}\r\n\r\n".encode() + bytes(2 << 20))
        until(lambda: web.spooled())
    until(lambda: not web.spooled())
    assert web.service.count("images") == before


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port)) as sender:
        head = f"POST /api/v1/slices HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.token}\r\n"
        sender.sendall(f"{head}Content-Length: {5 << 20}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(sender)
        answer.begin()
        assert answer.status == 413
        assert json.loads(answer.read())["code"] == "invalid"


def test_a_killed_predecessors_leavings_are_swept(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        (service.config.uploads_dir / "incoming-abc").write_bytes(b"x")
        (service.config.uploads_dir / f"{'0' * 64}.raw").write_bytes(b"x")
        assert len(images.sweep_uploads(service.store, service.config)) == 2
        assert list(service.config.uploads_dir.iterdir()) == []


@pytest.mark.parametrize("user", ["root", "0:0", "0:5", "nobody-of-this-name", "a:b", ""])
def test_users_that_the_web_process_must_not_be(user: str) -> None:
    with pytest.raises(Refused) as caught:
        unix_socket.user_ids(user)
    assert caught.value.field == "web.user"


@contextlib.contextmanager
def _agent(web: Web, speak: Callable[[socket.socket, bytes], object]) -> Iterator[None]:
    """An agent that gets the stream of each console, and its token."""

    def attend(stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError):
            speak(stream, stream.recv(256))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=attend, args=(listener.accept()[0],), daemon=True).start()

    with console_socket.listen(web.service.config.console_socket, f"{USER}:{USER}") as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _echo(stream: socket.socket, _token: bytes) -> None:
    stream.send(console_socket.OPENED)
    while data := console_socket.parse_input(stream.recv(console_socket.CHUNK + 1)):
        if data == b"enough":
            stream.send(console_socket.error_packet(Refused(Code.CONFLICT, "it has stopped")))
            return
        echoed = str(tuple(data)).encode() if isinstance(data, console_socket.TerminalSize) else data
        stream.send(console_socket.data_packet(echoed))


@pytest.fixture
def client(web: Web) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{web.port}", web.token) as made:
        if "console" not in {one["name"] for one in made.slices.list()}:
            web.service.create("console")
        yield made


def _heard(channel: websocket.Channel, amount: int) -> bytes:
    """This number of bytes, or those before the end."""
    received = b""
    deadline = time.monotonic() + 30
    while len(received) < amount and channel.ended is None:
        assert time.monotonic() < deadline
        channel.flush()
        received += channel.receive() or (time.sleep(0.005) or b"")  # type: ignore[func-returns-value]
    return received


def test_a_console_is_bytes_both_ways_until_the_agent_says_why_not(web: Web, client: Client) -> None:
    with _agent(web, _echo), client.slices.console("console") as channel:
        channel.send(b"\x00\xff")
        assert _heard(channel, 2) == b"\x00\xff"
        channel.send(b"x" * 3_000_000)  # more than all buffers on the way there and back
        assert _heard(channel, 3_000_000) == b"x" * 3_000_000
        channel.send(b"enough")
        _heard(channel, 1)
    assert channel.ended is not None
    error = channel.ended.error("")
    assert error is not None and (error.code, error.message) == (Code.CONFLICT, "it has stopped")


def test_the_size_of_the_window_reaches_the_agent(web: Web, client: Client) -> None:
    with _agent(web, _echo), client.slices.console("console") as channel:
        for size in ((50, 160), (24, 80)):
            channel.resize(*size)
            assert _heard(channel, 8) == str(size).encode()
        channel.resize(24, 80)  # nothing new
        channel.send(b"typed")
        assert _heard(channel, 5) == b"typed"


def test_an_agent_that_is_away_refuses_or_goes_is_told_as_such(web: Web, client: Client) -> None:
    with pytest.raises(Refused) as caught:
        client.slices.console("console")
    assert caught.value.code is Code.UNAVAILABLE and "agent" in caught.value.message
    no = Refused(Code.CONFLICT, "no", hint="because")
    with (
        _agent(web, lambda stream, _: stream.send(console_socket.error_packet(no))),
        pytest.raises(Refused, match=r"no \(because\)"),
    ):
        client.slices.console("console")
    with _agent(web, lambda stream, _: stream.send(console_socket.OPENED)), client.slices.console("console") as channel:
        assert _heard(channel, 1) == b""
    assert channel.ended is not None and "was lost" in channel.ended.reason


def test_a_client_that_goes_is_told_to_the_agent(web: Web, client: Client) -> None:
    gone = threading.Event()

    def listen(stream: socket.socket, _token: bytes) -> None:
        stream.send(console_socket.OPENED)
        assert stream.recv(1) == b""
        gone.set()

    with _agent(web, listen):
        client.slices.console("console").__exit__()
        assert gone.wait(30)


def test_consoles_leave_room_for_requests(web: Web, client: Client) -> None:
    """16 threads, half of them for consoles."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_agent(web, _echo))
        channels = [stack.enter_context(client.slices.console("console")) for _ in range(8)]
        with pytest.raises(Refused, match="too many consoles"):
            client.slices.console("console")
        assert client.slices.list()
        channels[0].send(b"enough")
        _heard(channels[0], 1)
        for _ in range(100):
            with contextlib.suppress(Refused):
                stack.enter_context(client.slices.console("console"))
                break
            time.sleep(0.05)
        else:
            pytest.fail("a console that was left makes no room")

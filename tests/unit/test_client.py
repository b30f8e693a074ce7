"""The REST client: errors, the kept connection, waiting, uploads, and where it finds the service."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from canned_service import Answer, Canned, Request, operation, problem, slice

from slicemgr.client import Client, find_settings
from slicemgr.client.connection import readable
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

MIB = 1 << 20


@pytest.fixture
def canned() -> Iterator[Canned]:
    with Canned() as service:
        yield service


@pytest.fixture
def client(canned: Canned) -> Iterator[Client]:
    with Client(canned.url, "secret", 10) as one:
        yield one


@pytest.mark.parametrize("code", list(Code))
def test_a_problem_becomes_its_error(canned: Canned, client: Client, code: Code) -> None:
    canned.on("GET /slices/exp", problem(code.status, code.wire, "it is so", hint="do that"))
    with pytest.raises(SlicemgrError) as caught:
        client.slices.get("exp")
    error = caught.value
    assert (error.code, error.message, error.hint) == (code, "it is so", "do that")
    assert isinstance(error, Failed if code is Code.FAILED else Refused)


def test_each_wrong_field_is_told(canned: Canned, client: Client) -> None:
    errors = [{"field": "cpu", "message": "too much"}, {"field": "disk", "message": "too little", "hint": "16M"}]
    canned.on("POST /slices", problem(422, "invalid", "too much", field="cpu", errors=errors))
    with pytest.raises(Refused) as caught:
        client.slices.submit({"name": "exp"})
    assert caught.value.field == "cpu"
    assert caught.value.__notes__ == ["disk: too little (16M)"]
    canned.on("POST /slices", problem(422, "invalid", "too much", field="cpu", hint="16M", errors=errors))
    with pytest.raises(Refused) as caught:
        client.slices.submit({"name": "exp"})
    assert str(caught.value) == "cpu: too much (16M)" and caught.value.__notes__ == ["disk: too little"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(502, Code.UNAVAILABLE), (503, Code.UNAVAILABLE), (404, Code.NOT_FOUND), (302, Code.FAILED), (403, Code.DENIED)],
)
def test_a_page_of_somebody_else_is_judged_by_its_status(
    canned: Canned, client: Client, status: int, code: Code
) -> None:
    canned.on("GET /slices", Answer(status, b"<html>nginx</html>"))
    with pytest.raises(SlicemgrError, match=f"HTTP status {status}") as caught:
        client.slices.list()
    assert caught.value.code is code


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b'{"slices": 3}', b"{}"])
def test_an_answer_that_is_not_ours_is_no_list(canned: Canned, client: Client, body: bytes) -> None:
    canned.on("GET /slices", Answer(200, body))
    with pytest.raises(Failed):
        client.slices.list()


def test_a_wrong_token_says_where_it_came_from(canned: Canned) -> None:
    canned.on("GET /slices", problem(401, "unauthenticated", "the token is not valid"))
    with Client(canned.url, "stale", source="/etc/client.json") as client, pytest.raises(Refused) as caught:
        client.slices.list()
    assert "/etc/client.json" in caught.value.hint
    assert canned.requests[0].token == "stale"


def test_a_service_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", "t") as client, pytest.raises(Refused) as caught:
        client.slices.list()
    assert caught.value.code is Code.UNAVAILABLE
    assert f"http://127.0.0.1:{port}" in caught.value.message
    assert "slicemgr up" in caught.value.hint


def test_a_service_that_never_answers_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, "t", 0.1) as client, pytest.raises(Failed) as caught:
            client.slices.list()
    assert caught.value.code is Code.TIMEOUT


def test_one_connection_serves_many_calls_even_after_an_error(canned: Canned, client: Client) -> None:
    canned.on("GET /slices", {"slices": []})
    for _ in range(2):
        assert client.slices.list() == []
    with pytest.raises(Refused):
        client.slices.get("missing")
    assert client.slices.list() == []
    assert len({one.connection for one in canned.requests}) == 1


def test_a_connection_closed_meanwhile_is_opened_again(canned: Canned, client: Client) -> None:
    canned.on("GET /slices", Answer(200, {"slices": []}, close=True))
    canned.on("POST /slices/exp/stop", {"operation": operation()})
    client.slices.list()
    while not readable(client.connection.http):
        time.sleep(0.001)
    client.slices.act("exp", "stop")
    assert len(canned.asked("POST /slices/exp/stop")) == 1
    assert len({one.connection for one in canned.requests}) == 2


def test_only_a_question_is_asked_twice(canned: Canned, client: Client) -> None:
    canned.on("GET /slices", {"slices": []}, Answer(0), {"slices": []})
    canned.on("POST /slices/exp/stop", Answer(0))
    client.slices.list()
    assert client.slices.list() == []
    assert len(canned.asked("GET /slices")) == 3
    with pytest.raises(Failed, match="was lost") as caught:
        client.slices.act("exp", "stop")
    assert caught.value.code is Code.UNAVAILABLE
    assert len(canned.asked("POST /slices/exp/stop")) == 1


def test_a_client_of_a_project_leaves_the_other_unchanged(canned: Canned, client: Client) -> None:
    canned.on("GET /slices", {"slices": []})
    client.slices.list()
    of_lab = client.of_project("lab")
    of_lab.slices.list()
    client.slices.list()
    assert (of_lab.project, client.project) == ("lab", None)
    assert [one.query.get("project") for one in canned.requests] == [None, "lab", None]
    assert len({one.connection for one in canned.requests}) == 1


def test_a_create_is_asked_once_more_with_the_same_key(canned: Canned, client: Client) -> None:
    keys = []

    def note(request: Request) -> Answer:
        keys.append(request.key)
        return Answer(0) if len(keys) == 1 else Answer(202, {"operation": operation(), "slice": slice()})

    canned.on("POST /slices", note)
    assert client.slices.submit({"name": "exp"})["slice"]["name"] == "exp"
    assert len(keys) == 2 and keys[0] == keys[1] != ""
    client.slices.submit({"name": "exp"})
    assert keys[2] not in ("", keys[0])
    canned.on("POST /slices", Answer(0))
    with pytest.raises(Failed, match="was lost"):
        client.slices.submit({"name": "exp"})


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/..", "a/b/c", "A/b", "a\nb", "\x1b", "\udcff"])
def test_a_name_cannot_become_another_path(canned: Canned, client: Client, name: str) -> None:
    for call in (
        client.slices.get,
        client.slices.delete,
        client.images.get,
        client.images.delete,
        client.nodes.get,
        client.operations.get,
    ):
        with pytest.raises(Refused) as caught:
            call(name)
        assert caught.value.code is Code.INVALID
    assert canned.requests == []


def test_a_slice_is_named_with_its_project(canned: Canned, client: Client) -> None:
    client.project = "own"
    canned.on("GET /slices/exp", slice("exp"))
    canned.on("GET /slices/exp/snapshots", {"snapshots": []})
    canned.on("GET /slices/exp/samples", {"slivers": []})
    canned.on("GET /events", {"events": []})
    client.slices.get("exp")
    client.slices.get("lab/exp")
    client.snapshots.list("lab/exp")
    client.samples.of_slice("lab/exp")
    client.events.list(slice="lab/exp")
    assert [one.query.get("project") for one in canned.requests] == ["own", *["lab"] * 4]
    assert canned.requests[-1].query["slice"] == "exp"


def test_a_new_slice_is_named_with_its_project(canned: Canned, client: Client) -> None:
    canned.on("POST /slices", {"slice": slice("exp")})
    client.project = "own"
    for given in ({"name": "lab/exp"}, {"name": "exp"}, {"name": "exp", "project": "other"}, {"type": "lxc"}):
        client.slices.submit(given)  # type: ignore[arg-type]
    assert [(one.body.get("project"), one.body.get("name")) for one in canned.requests] == [
        *(("lab", "exp"), ("own", "exp"), ("other", "exp"), ("own", None))
    ]


def test_odd_names_arrive_as_they_are(canned: Canned, client: Client) -> None:
    canned.on("GET /slices/a%20b%3Fc%23d%25", slice("odd"))
    assert client.slices.get("a b?c#d%")["name"] == "odd"


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8480", "http://", "http://h:port", "http://a b/", "http://h\n"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    if url.endswith("\n"):
        url += "x"
    with pytest.raises(Refused) as caught:
        Client(url, "t")
    assert caught.value.code is Code.INVALID


def test_a_token_cannot_add_a_header() -> None:
    with pytest.raises(Refused):
        Client("http://127.0.0.1:1", "t\r\nX-Evil: 1")


def test_waiting_tells_each_change_once(canned: Canned, client: Client) -> None:
    canned.on(
        "GET /operations/op1",
        operation("queued", 1),
        operation("running", 2),
        operation("running", 2),
        operation("done", 3),
    )
    versions: list[int] = []
    ended = client.operations.wait("op1", 60, lambda one: versions.append(one["version"]))
    assert ended["state"] == "done"
    assert versions == [1, 2, 3]
    assert [one.query.get("seen") for one in canned.requests] == ["0", "1", "2", "2"]
    assert all(0 < int(one.query["wait"]) <= 60 for one in canned.requests)


def test_waiting_ends_with_its_time(canned: Canned, client: Client) -> None:
    canned.on("GET /operations/op1", operation())
    with pytest.raises(Failed, match="op1 has not ended") as caught:
        client.operations.wait("op1", 0.05)
    assert caught.value.code is Code.TIMEOUT


def test_waiting_outlives_a_restart_of_the_service(canned: Canned, client: Client) -> None:
    canned.on("GET /operations/op1", operation(), problem(503, "unavailable"), Answer(0), operation("failed", 2))
    assert client.operations.wait("op1", patience=5)["state"] == "failed"


def test_patience_has_an_end(canned: Canned, client: Client) -> None:
    canned.on("GET /operations/op1", problem(503, "unavailable"))
    with pytest.raises(Refused) as caught:
        client.operations.wait("op1", patience=0.05)
    assert caught.value.code is Code.UNAVAILABLE


def test_an_upload_arrives_whole_and_tells_how_far(canned: Canned, client: Client) -> None:
    data = os.urandom(2 * MIB + 7)
    canned.on("POST /images", Answer(202, {"image": {}, "operation": operation()}))
    seen: list[tuple[int, int]] = []
    client.images.upload(
        io.BytesIO(data + b"later"), len(data), name="a&b", format="raw", on_progress=lambda *at: seen.append(at)
    )
    (request,) = canned.requests
    assert request.data == data
    assert request.query == {"name": "a&b", "format": "raw"}
    assert seen == [(MIB, len(data)), (2 * MIB, len(data)), (len(data), len(data))]


def test_a_refusal_in_the_middle_of_an_upload_is_heard(canned: Canned, client: Client) -> None:
    refusal = problem(409, "conflict", "there is such a name already")
    canned.on("POST /images", Answer(refusal.status, refusal.body, unread=True))
    canned.on("GET /images", {"images": []})
    with pytest.raises(SlicemgrError) as caught:
        client.images.upload(_Endless(), 1 << 40, name="n", format="raw")
    assert caught.value.code in (Code.CONFLICT, Code.UNAVAILABLE)  # the kernel may drop the answer with the line
    assert client.images.list() == []


class _Endless(io.BytesIO):
    """A large file that takes no memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        return b"\0" * min(size or MIB, MIB)


def test_a_file_that_shrinks_is_not_sent_as_whole(canned: Canned, client: Client) -> None:
    def incomplete(request: Request) -> Answer:
        return problem(422, "invalid") if len(request.data) < 10 else Answer(200, {"image": {}})

    canned.on("POST /images", incomplete)
    canned.on("GET /images", {"images": []})
    with pytest.raises(Refused, match="ended after 4 of 10 bytes"):
        client.images.upload(io.BytesIO(b"half"), 10, name="n", format="raw")
    assert client.images.list() == []


def _settings_file(path: Path, url: str) -> Path:
    path.write_text(json.dumps({"url": url, "token": f"token of {url}"}))
    return path


def test_settings_variables_come_before_files(tmp_path: Path) -> None:
    file = _settings_file(tmp_path / "client.json", "http://file")
    key = tmp_path / "token"
    key.write_text("from a file\n")
    both = {"SLICEMGR_URL": "http://env", "SLICEMGR_TOKEN": "t"}
    assert find_settings(both, [file])[:2] == ("http://env", "t")
    by_file = {"SLICEMGR_URL": "http://env", "SLICEMGR_TOKEN_FILE": str(key)}
    assert find_settings(by_file, [file])[:2] == ("http://env", "from a file")
    assert find_settings({"SLICEMGR_TOKEN": "t"}, [file])[:2] == ("http://file", "t")


def test_settings_of_the_first_file_that_is_there(tmp_path: Path) -> None:
    files = [tmp_path / "missing", *(_settings_file(tmp_path / name, f"http://{name}") for name in ("b", "c"))]
    assert find_settings({}, files) == ("http://b", "token of http://b", str(files[1]), None)


def test_settings_order_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    for name in ("SLICEMGR_URL", "SLICEMGR_TOKEN", "SLICEMGR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    install = tmp_path / "prefix/etc/slicemgr"
    user = tmp_path / "home/.config/slicemgr"
    for directory in (install, user):
        directory.mkdir(parents=True)
    _settings_file(install / "client.json", "http://install")
    assert find_settings().url == "http://install"
    _settings_file(user / "client.json", "http://user")
    assert find_settings().url == "http://user"


def test_settings_never_send_a_files_token_to_a_variables_url(tmp_path: Path) -> None:
    file = _settings_file(tmp_path / "client.json", "http://file")
    with pytest.raises(Refused) as caught:
        find_settings({"SLICEMGR_URL": "http://elsewhere"}, [file])
    assert (caught.value.code, caught.value.field) == (Code.INVALID, "SLICEMGR_TOKEN")


def test_settings_that_nobody_left_say_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        find_settings({}, [tmp_path / "missing"])
    assert caught.value.code is Code.UNAVAILABLE
    assert "slicemgr up" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"url": "http://x"}', "\0"])
def test_settings_that_make_no_sense_name_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "client.json"
    file.write_text(text)
    with pytest.raises(Refused) as caught:
        find_settings({}, [file])
    assert (caught.value.code, caught.value.field) == (Code.INVALID, str(file))


def test_settings_for_other_eyes_only(tmp_path: Path) -> None:
    class Locked(type(tmp_path)):  # type: ignore[misc]  # root may read every real file
        def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
            raise PermissionError(13, "Permission denied", str(self))

    with pytest.raises(Refused) as caught:
        find_settings({}, [Locked(tmp_path / "client.json")])
    assert caught.value.code is Code.DENIED
    readable = _settings_file(tmp_path / "other", "http://other")
    assert find_settings({}, [Locked(tmp_path / "client.json"), readable]).url == "http://other"

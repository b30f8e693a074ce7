"""The REST API: requests, answers, refusals, and the cleanup after failed uploads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_service import SHA, request, service, settings
from flask.testing import FlaskClient
from kept_apps import application

from slicemgr.config import Config
from slicemgr.service.accounts import authentication

pytestmark = pytest.mark.usefixtures("each_store")

API = "/api/v1"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return settings(tmp_path)


@pytest.fixture
def client(config: Config) -> Iterator[FlaskClient]:
    with service(config) as store, application(config, store) as app:
        path = config.node.run_dir / "client.json"
        authentication.ensure_local_admin(store, path, "http://x")
        made = app.test_client()
        made.environ_base["HTTP_AUTHORIZATION"] = "Bearer " + json.loads(path.read_text())["token"]
        yield made


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status and answer.mimetype == "application/problem+json"
    body: dict[str, Any] = answer.get_json(force=True)
    assert (body["status"], body["code"]) == (status, code)
    assert body["title"] and body["detail"]
    return body


def test_a_slice_from_request_to_deletion(client: FlaskClient) -> None:
    answer = client.post(f"{API}/slices", json=request(count=2, memory="256M"))
    assert answer.status_code == 202
    made = answer.get_json()
    assert made["operation"]["kind"] == "create" and made["operation"]["state"] == "queued"
    shown = client.get(f"{API}/slices/exp").get_json()
    assert shown == made["slice"]
    keys = {"name", "type", "project", "state", "created_at", "expires_at", "image", "slivers"}
    assert keys <= set(shown)
    sliver = shown["slivers"][0]
    assert {"index", "node", "state", "address", "ssh", "ports", "limits", "usage", "error"} <= set(sliver)
    assert sliver["limits"]["memory"] == 256 << 20 and sliver["ssh"]["port"] == sliver["ports"]["first"]
    assert shown["created_at"].endswith("Z")
    assert [one["name"] for one in client.get(f"{API}/slices?type=lxc").get_json()["slices"]] == ["exp"]
    assert client.get(f"{API}/slices?type=kvm").get_json() == {"slices": []}
    assert client.post(f"{API}/slices/exp/stop", json={"force": True}).status_code == 202
    assert client.post(f"{API}/slices/exp/renew", json={"lease": "9d"}).status_code == 200
    operation = client.delete(f"{API}/slices/exp").get_json()["operation"]
    assert operation["kind"] == "delete"
    problem(client.post(f"{API}/slices/exp/start"), 409, "conflict")
    waited = client.get(f"{API}/operations/{operation['id']}?wait=0.05")
    assert waited.get_json()["state"] == "queued"
    actions = [one["action"] for one in client.get(f"{API}/events?slice=exp").get_json()["events"]]
    assert actions == ["delete", "renew", "stop", "create"]


def test_a_dry_run_changes_nothing(client: FlaskClient) -> None:
    plan = client.post(f"{API}/slices", json=request(count=3, dry_run=True)).get_json()["plan"]
    assert [one["index"] for one in plan["slivers"]] == [0, 1, 2]
    assert client.get(f"{API}/slices").get_json() == {"slices": []}
    assert client.get(f"{API}/operations").get_json() == {"operations": []}


@pytest.mark.parametrize(
    ("more", "status", "code", "field"),
    [
        ({"name": "../x"}, 422, "invalid", "name"),
        ({"name": "a" * 64}, 422, "invalid", "name"),
        ({"type": "vm"}, 422, "invalid", "type"),
        ({"image": "nope"}, 422, "invalid", "image"),
        ({"node": "nope"}, 422, "invalid", "node"),
        ({"memory": "-1"}, 422, "invalid", "memory"),
        ({"ssh_keys": [""]}, 422, "invalid", "ssh_keys"),
        ({"count": 500, "ports": 100}, 403, "quota", "count"),
        ({"dry_run": "yes"}, 422, "invalid", "dry_run"),
    ],
)
def test_refusals(client: FlaskClient, more: dict[str, Any], status: int, code: str, field: str) -> None:
    body = problem(client.post(f"{API}/slices", json=request(**more)), status, code)
    assert body["field"] in (field, "ports" if field == "count" else field)
    assert body["errors"][0]["field"] == body["field"]
    assert client.get(f"{API}/slices").get_json() == {"slices": []}


def test_a_taken_name(client: FlaskClient) -> None:
    client.post(f"{API}/slices", json=request())
    assert problem(client.post(f"{API}/slices", json=request()), 409, "conflict")["field"] == "name"


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'"x"'])
def test_a_body_that_is_no_object(client: FlaskClient, data: bytes) -> None:
    assert problem(client.post(f"{API}/slices", data=data), 422, "invalid")["field"] == "body"


@pytest.mark.parametrize(
    "body",
    [
        r'{"name": "a\u0000"}',
        r'{"name": "exp", "reason": "\ud800"}',
        r'{"a\u0000": 1}',
        r'{"ssh_keys": [["\u0000"]]}',
        "[" * 100_000,
        '{"name":' * 900 + "1" + "}" * 900,
    ],
)
def test_text_that_no_database_keeps(client: FlaskClient, body: str) -> None:
    problem(client.post(f"{API}/slices", data=body), 422, "invalid")
    problem(client.post(f"{API}/projects", data=body), 422, "invalid")


@pytest.mark.parametrize(
    "path", ["/slices/a%00b", "/slices?owner=%00", "/keys?user=%00", "/slices?%00=1", "/users/%00"]
)
def test_a_target_with_nul(client: FlaskClient, path: str) -> None:
    problem(client.get(API + path), 422, "invalid")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/slices/nope", 404, "not_found"),
        ("DELETE", "/slices/nope", 404, "not_found"),
        ("GET", "/images/nope", 404, "not_found"),
        ("GET", "/nodes/nope", 404, "not_found"),
        ("POST", "/nodes/nope/doctor", 404, "not_found"),
        ("GET", "/operations/nope", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("PUT", "/slices", 405, "invalid"),
        ("POST", "/slices/exp/explode", 422, "invalid"),
        ("GET", "/operations?limit=x", 422, "invalid"),
        ("GET", "/operations?limit=-1", 422, "invalid"),
        ("GET", "/events?limit=nan", 422, "invalid"),
    ],
)
def test_other_refusals(client: FlaskClient, method: str, path: str, status: int, code: str) -> None:
    problem(client.open(API + path, method=method), status, code)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic eDp5", "Bearer \xe9"])
def test_without_a_token_nothing(client: FlaskClient, header: str) -> None:
    for path in ("/slices", "/images", "/nodes", "/operations", "/events"):
        answer = client.get(API + path, headers={"Authorization": header})
        problem(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_what_is_open(client: FlaskClient) -> None:
    open_to_all = {"Authorization": ""}
    assert client.get("/healthz", headers=open_to_all).get_json() == {"status": "ok"}
    assert f"{API}/slices" in client.get(f"{API}/openapi.json", headers=open_to_all).get_json()["paths"]
    assert client.get("/sign-in", headers=open_to_all).status_code == 200


def test_an_upload(client: FlaskClient, config: Config) -> None:
    data = b"disk" * 1000
    digest = hashlib.sha256(data).hexdigest()
    answer = client.post(f"{API}/images?name=new&format=raw", data=data)
    assert answer.status_code == 202 and answer.get_json()["image"]["sha256"] == digest
    assert (config.uploads_dir / f"{digest}.raw").read_bytes() == data
    again = client.post(f"{API}/images?name=other&format=raw", data=data)
    assert again.status_code == 202 and again.get_json()["image"]["name"] == "new", "its import is under way"
    assert [one.name for one in config.uploads_dir.iterdir()] == [f"{digest}.raw"]


@pytest.mark.parametrize(
    ("query", "data", "code"),
    [
        ("name=new&format=raw", b"", "invalid"),
        ("name=../x&format=raw", b"x", "invalid"),
        ("name=&format=raw", b"x", "invalid"),
        ("name=new&format=vmdk", b"x", "invalid"),
        ("name=debian-12&format=raw", b"x", "conflict"),
    ],
)
def test_a_refused_upload_leaves_nothing(
    client: FlaskClient, config: Config, query: str, data: bytes, code: str
) -> None:
    status = {"invalid": 422, "conflict": 409}[code]
    problem(client.post(f"{API}/images?{query}", data=data), status, code)
    assert list(config.uploads_dir.iterdir()) == []
    assert [one["sha256"] for one in client.get(f"{API}/images").get_json()["images"]] == [SHA]


def test_an_upload_that_is_cut_off_leaves_nothing(client: FlaskClient, config: Config) -> None:
    answer = client.post(f"{API}/images?name=new&format=raw", data=b"half", environ_overrides={"CONTENT_LENGTH": "8"})
    assert answer.status_code in (400, 422)
    assert list(config.uploads_dir.iterdir()) == []
    assert len(client.get(f"{API}/images").get_json()["images"]) == 1


def test_a_console_is_asked_for_with_the_number_of_a_sliver(client: FlaskClient) -> None:
    client.post(f"{API}/slices", json=request(count=2))
    for body in ({}, {"sliver": 1}):
        answer = client.post(f"{API}/slices/exp/console", json=body).get_json()
        assert len(answer["token"]) == 43 and answer["path"] == f"{API}/console"
    for wrong in (-1, True, "0", 1.5, None, [0], 1000):
        assert problem(client.post(f"{API}/slices/exp/console", json={"sliver": wrong}), 422, "invalid")["field"]
    problem(client.post(f"{API}/slices/exp/console", json={"sliver": 2}), 404, "not_found")
    problem(client.post(f"{API}/slices/nope/console", json={}), 404, "not_found")
    client.environ_base.pop("HTTP_AUTHORIZATION")
    problem(client.post(f"{API}/slices/exp/console", json={}), 401, "unauthenticated")


def test_the_console_itself_is_a_websocket_alone(client: FlaskClient) -> None:
    problem(client.get(f"{API}/console"), 400, "invalid")
    told = client.get(f"{API}/openapi.json").get_json()["paths"]
    assert set(told[f"{API}/console"]["get"]["responses"]) >= {"101", "401", "403"}

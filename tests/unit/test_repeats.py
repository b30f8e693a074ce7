"""`Idempotency-Key`: a repeated request is executed once and answered twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import ADMIN, Service, request
from flask import Flask
from flask.testing import FlaskClient

from slicemgr.errors import Code, Refused
from slicemgr.ipc import wake
from slicemgr.ipc.wake import Listener
from slicemgr.service import idempotency
from slicemgr.service.idempotency import Answer, Asked
from slicemgr.service.leases import leases
from slicemgr.service.nodes import retention
from slicemgr.service.projects import projects
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app

pytestmark = pytest.mark.usefixtures("both_stores")

API = "/api/v1"
KEY = {"Idempotency-Key": "6f1c"}
DAY = timedelta(days=1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


@pytest.fixture
def app(service: Service) -> Flask:
    return service.app


def client_of(app: Flask, token: str) -> FlaskClient:
    made = app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    return made


@pytest.fixture
def client(app: Flask, service: Service) -> FlaskClient:
    return client_of(app, service.token())


def create(client: FlaskClient, name: str = "exp", headers: dict[str, str] | None = None, **more: Any) -> Any:
    return client.post(f"{API}/slices", json=request(name, **more), headers=KEY if headers is None else headers)


def test_the_same_key_and_body_get_the_same_answer(client: FlaskClient, service: Service) -> None:
    first = create(client)
    again = create(client)
    assert (first.status_code, first.text) == (again.status_code, again.text) == (202, first.text)
    assert "Idempotency-Replayed" not in first.headers and again.headers["Idempotency-Replayed"] == "true"
    assert service.count("slices") == service.count("operations") == 1
    assert create(client, headers={}).status_code == 409, "without the key it is another request"


def test_the_order_of_a_bodys_fields_means_nothing(client: FlaskClient) -> None:
    body = request()
    backwards = json.dumps(dict(reversed(body.items())), indent=3)
    first = client.post(f"{API}/slices", data=json.dumps(body), headers=KEY)
    assert client.post(f"{API}/slices", data=backwards, headers=KEY).text == first.text


@pytest.mark.parametrize("other", ["body", "route", "query"])
def test_another_request_with_the_key_is_refused(client: FlaskClient, service: Service, other: str) -> None:
    create(client)
    before = service.dump()
    if other == "body":
        answer = create(client, count=2)
    else:
        query = "?project=default" if other == "query" else ""
        path = f"{API}/slices{query}" if query else f"{API}/slices/exp/stop"
        answer = client.post(path, json=request(), headers=KEY)
    told = answer.get_json(force=True)
    assert (answer.status_code, told["code"], told["field"]) == (409, "conflict", "Idempotency-Key")
    assert service.dump() == before


def test_another_user_has_keys_of_his_own(app: Flask, client: FlaskClient, service: Service) -> None:
    client.post(f"{API}/users", json={"name": "bob"})
    with service.store.write() as c:
        c.execute(t.users.update().where(t.users.c.name == "bob").values(admin=True))
        c.execute(t.tokens.insert().values(**_bobs()))
    create(client)
    answer = create(client_of(app, "bobs"), "other")
    assert answer.status_code == 202 and answer.get_json()["slice"]["owner"] == "bob"


def _bobs(token: str = "bobs") -> dict[str, Any]:
    from slicemgr.service.accounts import authentication

    return {"hash": authentication.digest(token), "user": "bob", "label": "x", "created_at": utcnow(), "id": token}


def test_many_at_once_are_one(app: Flask, service: Service) -> None:
    token = service.token()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: create(client_of(app, token)), range(12)))
    assert {one.text for one in answers} == {answers[0].text} and answers[0].status_code == 202
    assert sum("Idempotency-Replayed" in one.headers for one in answers) == 11
    assert service.count("slices") == 1


def test_a_restart_forgets_nothing(client: FlaskClient, service: Service) -> None:
    first = create(client)
    token = client.environ_base["HTTP_AUTHORIZATION"].partition(" ")[2]
    again = create(client_of(create_app(service.config, service.store), token))
    assert again.text == first.text


def test_who_dies_before_the_answer_is_written_has_done_nothing(service: Service) -> None:
    """For every request, and for the death of view or process, effect and answer are one transaction."""

    def die() -> Answer:
        projects.create(service.store, service.config, {"name": "new"}, ADMIN)
        raise KeyboardInterrupt

    before = service.dump()
    asked = Asked(ADMIN.user, "k", "POST /x", b"{}", "")
    with pytest.raises(KeyboardInterrupt):
        idempotency.once(service.store, asked, die)
    assert service.dump() == before
    with pytest.raises(KeyboardInterrupt):  # the control: by itself it would have stayed
        die()
    assert service.dump() != before


def woken_inside(service: Service, key: str, listener: Listener) -> bool:
    """Whether a request that creates a slice wakes the agent before its transaction has ended."""
    found = []

    def do() -> Answer:
        service.create(f"slice-{key}")
        found.append(listener.wait(0))
        return Answer(202, "{}")

    idempotency.once(service.store, Asked(ADMIN.user, key, "POST /x", b"", ""), do)
    return found[0]


def test_the_agent_is_woken_when_it_can_read_the_rows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with Listener(service.config.wake_socket) as listener:
        assert not woken_inside(service, "a", listener)
        assert listener.wait(0)
        monkeypatch.setattr(wake, "held", contextlib.nullcontext)  # the control
        assert woken_inside(service, "b", listener)


def test_what_was_refused_is_not_kept(client: FlaskClient, service: Service) -> None:
    assert create(client, image="later").status_code == 422
    service.add_image("ef" * 32, "later")
    assert create(client, image="later").status_code == 202


def test_an_answer_that_is_an_error_undoes_and_is_not_kept(service: Service) -> None:
    def fail() -> Answer:
        projects.create(service.store, service.config, {"name": "new"}, ADMIN)
        return Answer(500, "{}")

    before = service.dump()
    assert idempotency.once(service.store, Asked(ADMIN.user, "k", "POST /x", b"", ""), fail).status == 500
    assert service.dump() == before


def test_a_secret_is_told_twice_but_kept_sealed(app: Flask, client: FlaskClient, service: Service) -> None:
    first = client.post(f"{API}/tokens", json={"label": "script"}, headers=KEY)
    secret = first.get_json()["token"]
    assert client.post(f"{API}/tokens", json={"label": "script"}, headers=KEY).get_json()["token"] == secret
    kept = service.dump()["answers"]
    assert len(kept) == 1 and secret not in str(kept) and kept[0].sealed
    other = client_of(app, secret).post(f"{API}/tokens", json={"label": "script"}, headers=KEY)
    assert other.status_code == 409, "another token of the user does not read it"
    create(client, headers={"Idempotency-Key": "open"})
    assert "exp" in str(service.dump()["answers"]), "the control: what is no secret can be read there"


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "\xe9"])
def test_a_key_that_is_none(client: FlaskClient, service: Service, key: str) -> None:
    answer = create(client, headers={"Idempotency-Key": key})
    assert answer.status_code == 422 and answer.get_json(force=True)["field"] == "Idempotency-Key"
    assert service.count("slices") == 0


def test_where_it_is_not_taken_it_is_refused(client: FlaskClient) -> None:
    answer = client.post(f"{API}/images?name=new&format=raw", data=b"disk", headers=KEY)
    assert answer.status_code == 422 and answer.get_json(force=True)["field"] == "Idempotency-Key"


def test_after_a_day_the_key_is_free_again(client: FlaskClient, service: Service) -> None:
    leases.expire(service.store, service.config)
    create(client)
    assert retention.forget(service.store, service.config, utcnow() + DAY / 2) == 0
    with service.store.write() as c:
        c.execute(t.answers.update().values(created_at=utcnow() - DAY))
    assert create(client, "second").status_code == 202, "one that is too old counts no more, pruned or not"
    assert retention.forget(service.store, service.config, utcnow() + DAY / 2) == 0
    assert retention.forget(service.store, service.config, utcnow() + 1.1 * DAY) == 1
    assert service.count("answers") == 0


def test_within_a_whole_an_inner_transaction_is_undone_alone(service: Service) -> None:
    with service.store.whole():
        with pytest.raises(Refused) as caught:
            projects.create(service.store, service.config, {"name": "lab", "pi": "nobody"}, ADMIN)
        assert caught.value.code in (Code.INVALID, Code.NOT_FOUND)
        projects.create(service.store, service.config, {"name": "kept"}, ADMIN)
    assert {row.name for row in service.dump()["projects"]} == {"default", "kept"}

"""Lists over REST: pages that nothing is lost between, filters, and a number of queries that rows do not raise."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import published
import pytest
import sqlalchemy as sa
from bare_service import SHA, Service
from flask.testing import FlaskClient

from slicemgr.client import Client
from slicemgr.errors import Failed
from slicemgr.model import Desired, Phase
from slicemgr.service.views import filters
from slicemgr.service.views import slices as slice_views
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web.api import lists

pytestmark = pytest.mark.usefixtures("each_store")

API = "/api/v1"
LISTS = [one for one in vars(lists).values() if isinstance(one, lists.Listing)]
OWN = {"invitations": "me/invitations"}  # where a list of that name is, if not under its name
ROWS = 7  # of each list that is filled below


@pytest.fixture(scope="module")
def filled(each_store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Rows in every list; some with the same time, so that the id decides."""
    with Service(tmp_path_factory.mktemp("lists")) as service:
        fill(service, ROWS)
        yield service


def fill(service: Service, count: int) -> None:
    now = utcnow()
    for number in range(count):
        service.create(f"exp-{number:04}", ports=1, memory="16M", disk="16M")
        if number:
            service.add_image(f"{number:064}", f"image-{number}")
    with service.store.write() as c:
        c.execute(t.operations.update().values(created_at=now))
        for number in range(count):
            at = now - timedelta(seconds=number // 3)
            c.execute(t.users.insert().values(name=f"user-{number}", admin=False, created_at=at))
            c.execute(t.projects.insert().values(name=f"project-{number}", created_at=at))
            c.execute(t.members.insert().values(project=f"project-{number}", user="admin", role="pi", created_at=at))
            asks: dict[str, Any] = {
                "project": f"project-{number}",
                "invitee": "admin",
                "role": "member",
                "invited_by": "admin",
            }
            asks |= {"id": f"id-{number}", "created_at": at, "expires_at": now + timedelta(1)}
            c.execute(t.project_invitations.insert().values(asks))
            c.execute(t.quotas.insert().values(project=f"project-{number}", level="quota", slices=1))
            spent = {column.name: 1 for column in t.accounts.c if column.name not in ("project", "month")}
            c.execute(t.accounts.insert().values(project=f"project-{number}", month="2026-01", **spent))
            mine = {"user": "admin", "created_at": at, "id": f"id-{number}"}
            c.execute(t.ssh_keys.insert().values(**mine, line="ssh-ed25519 AAAA"))
            c.execute(t.sessions.insert().values(**mine, hash=f"s{number}", expires_at=now + timedelta(1), used_at=at))
            c.execute(t.tokens.insert().values(**mine, hash=f"t{number}", label="x"))
            wanted = {"project": "default", "name": f"large-{number}", "body": {}, "reason": "x", "state": "waiting"}
            c.execute(t.requests.insert().values(**mine, **wanted))
            c.execute(t.experiments.insert().values(**published.row(f"{number:016}", published_at=at)))
            if number:
                node = {"address": "192.0.2.2", "agent_seen_at": now, "facts": {}}
                c.execute(t.nodes.insert().values(**node, name=f"other-{number}"))


def client_of(service: Service) -> FlaskClient:
    made = service.app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
    return made


@pytest.fixture(scope="module")
def client(filled: Service) -> FlaskClient:
    return client_of(filled)


def get(client: FlaskClient, path: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"{API}/{OWN.get(path, path)}", query_string=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.get_json()
    return body


def walk(client: FlaskClient, name: str, limit: int, **query: Any) -> Iterator[list[Any]]:
    cursor: dict[str, str] = {}
    while True:
        answer = get(client, name, limit=limit, **query, **cursor)
        yield answer[name]
        if "next" not in answer:
            return
        cursor = {"cursor": answer["next"]}


@pytest.mark.parametrize("listing", LISTS, ids=lambda one: one.name)
@pytest.mark.parametrize("limit", [1, 3, ROWS])
def test_the_pages_are_the_whole(client: FlaskClient, listing: lists.Listing, limit: int) -> None:
    whole = get(client, listing.name, limit=1000)
    assert "next" not in whole and len(whole[listing.name]) >= ROWS
    pages = list(walk(client, listing.name, limit))
    assert [row for page in pages for row in page] == whole[listing.name]
    assert all(len(page) == limit for page in pages[:-1]) and 0 < len(pages[-1]) <= limit


def test_every_list_there_is_has_pages(client: FlaskClient) -> None:
    """A new list without them is noticed: its answer is an object with one array of objects."""
    spec = client.get(f"{API}/openapi.json").get_json()
    found = {}
    for path, verbs in spec["paths"].items():
        ok = verbs.get("get", {}).get("responses", {}).get("200", {})
        name = ok.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        shape = spec["components"]["schemas"].get(name, {}).get("properties", {})
        listed = path.removeprefix(f"{API}/").removeprefix("me/")
        if listed in shape:
            found[listed] = {one["name"] for one in verbs["get"]["parameters"]}
            assert "next" in shape, path
    assert set(found) == {one.name for one in LISTS}
    assert all({"limit", "cursor"} <= names for names in found.values())


def test_rows_that_come_and_go_shift_nothing(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        for name in "bdfhj":
            service.create(name)
        client = client_of(service)
        pages = walk(client, "slices", 2)
        names = [row["name"] for row in next(pages)]
        with service.store.write() as c:
            c.execute(t.slices.delete().where(t.slices.c.name.in_(["b", "f"])))
        service.create("a")
        service.create("g")
        names += [row["name"] for page in pages for row in page]
        assert names == ["b", "d", "g", "h", "j"], "what was there all the time comes once"


def test_new_events_do_not_push_old_ones_onto_the_next_page(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        for name in "abcd":
            service.create(name)
        pages = walk(client_of(service), "events", 2)
        seen = [row["slice"] for row in next(pages)]
        service.create("e")
        assert seen + [row["slice"] for page in pages for row in page] == ["d", "c", "b", "a"]


def refused(client: FlaskClient, field: str, path: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"{API}/{path}", query_string=query)
    assert answer.status_code == 422, answer.text
    body: dict[str, Any] = answer.get_json(force=True)
    assert body["field"] == field and body["detail"] and body["hint"] is not None
    return body


@pytest.mark.parametrize("change", ["list", "filter", "user", "content", "signature", "none", "not base64", "\xe9"])
def test_a_cursor_of_something_else_is_refused(filled: Service, client: FlaskClient, change: str) -> None:
    cursor = get(client, "slices", limit=1, type="lxc")["next"]
    query = {"type": "lxc", "cursor": cursor}
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=="))
    if change == "list":
        refused(client, "cursor", "users", cursor=cursor)
        return
    if change == "filter":
        query = {"cursor": cursor}
    elif change == "user":
        client = client_of(filled)
        with filled.store.write() as c:
            from slicemgr.service.accounts import authentication

            c.execute(t.tokens.delete().where(t.tokens.c.hash == authentication.digest("another")))
            row = {
                "hash": authentication.digest("another"),
                "user": "admin",
                "label": "x",
                "created_at": utcnow(),
                "id": "an",
            }
            c.execute(t.tokens.insert().values(row))
        client.environ_base["HTTP_AUTHORIZATION"] = "Bearer another"
    elif change in ("content", "signature"):
        raw[-3 if change == "content" else 0] ^= 1
        query["cursor"] = base64.urlsafe_b64encode(raw).decode()
    else:
        query["cursor"] = {"none": "AAAA", "not base64": "a", "\xe9": "\xe9"}[change]
    assert "begin again" in refused(client, "cursor", "slices", **query)["hint"]


def test_a_cursor_is_good_for_a_day(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    cursor = get(client, "slices", limit=1)["next"]
    get(client, "slices", cursor=cursor)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86400 + 61)
    assert "too old" in refused(client, "cursor", "slices", cursor=cursor)["detail"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("slices", {"limit": "0"}),
        ("slices", {"limit": "1001"}),
        ("slices", {"limit": "1.5"}),
        ("slices", {"limit": "-1"}),
        ("slices", {"limit": "\u0663"}),
        ("slices", {"limit": "9" * 5000}),
        ("slices", {"type": "vm"}),
        ("slices", {"state": "odd"}),
        ("slices", {"owner": "x" * 300}),
        ("slices", {"typo": "lxc"}),
        ("operations", {"state": "odd"}),
        ("operations", {"since": "yesterday"}),
        ("events", {"since": "2026-01-01T00:00:00"}),
        ("events", {"until": "0001-01-01T00:00:00+23:00"}),
        ("requests", {"state": "odd"}),
        ("images", {"state": "odd"}),
        ("users", {"user": "bob"}),
    ],
)
def test_a_wrong_parameter_is_named(client: FlaskClient, path: str, query: dict[str, str]) -> None:
    refused(client, next(iter(query)), path, **query)


def names(client: FlaskClient, path: str, **query: Any) -> list[Any]:
    return [row.get("name") or row["id"] for row in get(client, path, **query)[path]]


def test_slices_are_narrowed(filled: Service, client: FlaskClient) -> None:
    everything = [f"exp-{number:04}" for number in range(ROWS)]
    assert names(client, "slices", owner="admin", project="default", type="lxc", state="creating") == everything
    for image in ("debian-12", SHA):
        assert names(client, "slices", image=image) == everything
    assert names(client, "slices", prefix="exp-000", limit=2, type="lxc") == everything[:2]
    assert names(client, "slices", prefix="exp-0003") == ["exp-0003"]
    for none in ({"owner": "x"}, {"project": "x"}, {"type": "kvm"}, {"state": "failed"}, {"image": "x"}):
        assert names(client, "slices", **none) == []
    for odd in ("EXP", "%", "exp_", "_", "*"):
        assert names(client, "slices", prefix=odd) == []


def test_operations_and_events_are_narrowed(filled: Service, client: FlaskClient) -> None:
    early, late = "2000-01-01T00:00:00Z", "2999-01-01T00:00:00+02:00"
    for path, one in (("operations", {"kind": "create"}), ("events", {"action": "create"})):
        assert len(names(client, path, user="admin", project="default", since=early, until=late, **one)) == ROWS
        assert len(names(client, path, slice="exp-0001", **one)) == 1
        for none in ({"until": early}, {"since": late}, {"user": "x"}, {"project": "x"}, {next(iter(one)): "x"}):
            assert names(client, path, **none) == []
    assert len(names(client, "operations", state="queued")) == ROWS and not names(client, "operations", state="done")
    assert len(names(client, "requests", state="waiting", user="admin", project="default", since=early)) == ROWS
    assert names(client, "requests", until=early) == names(client, "requests", state="granted") == []
    assert names(client, "images", prefix="image-1", state="ready") == ["image-1"]
    assert names(client, "images", project="lab") == []


def test_the_database_calls_a_slices_state_as_the_views_do(tmp_path: Path) -> None:
    """Every pair of slivers that there can be."""
    kinds = list(itertools.product(Desired, Phase))
    with Service(tmp_path) as service:
        pairs = itertools.combinations_with_replacement(kinds, 2)
        for number, (first, second) in enumerate(pairs):
            if number % 3 == 0 or first == second:  # a third of the mixed ones: they are many
                service.create(f"s{number}", count=2, ports=1, memory="16M", disk="16M")
                with service.store.write() as c:
                    own = sa.select(t.slices.c.id).where(t.slices.c.name == f"s{number}").scalar_subquery()
                    for index, (desired, phase) in enumerate((first, second)):
                        mine = sa.and_(t.slivers.c.slice == own, t.slivers.c.idx == index)
                        c.execute(t.slivers.update().where(mine).values(desired=desired, phase=phase))
        service.create("bare")
        with service.store.write() as c:
            own = sa.select(t.slices.c.id).where(t.slices.c.name == "bare").scalar_subquery()
            c.execute(t.slivers.delete().where(t.slivers.c.slice == own))
        with service.store.read() as c:
            everything = slice_views.slices(c)
            for state in lists.STATE.choices:
                found = slice_views.slices(c, where=filters.slices({"state": state}))
                assert found == [one for one in everything if one["state"] == state]
        assert {one["state"] for one in everything} <= set(lists.STATE.choices)


@contextmanager
def counted(service: Service) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(service.store.engine, "before_cursor_execute", note)
    yield statements
    sa.event.remove(service.store.engine, "before_cursor_execute", note)


@pytest.mark.parametrize("listing", LISTS, ids=lambda one: one.name)
def test_rows_cost_no_queries(filled: Service, client: FlaskClient, listing: lists.Listing) -> None:
    counts = []
    get(client, listing.name)
    for limit in (1, 1000):
        filled.change()  # otherwise the answer may be one that was kept
        with counted(filled) as statements:
            get(client, listing.name, limit=limit)
        counts.append(len(statements))
    assert counts[0] == counts[1], statements


def test_a_query_for_each_row_would_be_noticed(filled: Service) -> None:
    """The control."""
    with counted(filled) as statements, filled.store.read() as c:
        for one in slice_views.slices(c):
            slice_views.slice(c, one["name"])
    assert len(statements) > ROWS


def test_the_client_follows_the_pages(filled: Service, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicemgr.client.paths._PAGE", 3)
    paged, paths = Client("http://x", "t"), []

    def call(method: str, path: str) -> dict[str, Any]:
        paths.append(path)
        answer: dict[str, Any] = client.open(f"{API}{path}", method=method).get_json()
        return answer

    monkeypatch.setattr(paged.connection, "call", call)
    assert [one["name"] for one in paged.slices.list()] == names(client, "slices") and len(paths) == 3
    assert [one["id"] for one in paged.events.list(limit=5)] == names(client, "events", limit=5)
    assert len(paged.operations.list(limit=2)) == 2 and len(paged.requests.list(state="waiting")) == ROWS
    assert len(paged.users.list()) == ROWS + 1
    assert len(paged.keys.list()) == len(paged.sessions.list()) == ROWS


def test_a_list_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Client("http://x", "t")
    monkeypatch.setattr(endless.connection, "call", lambda _method, _path: {"slices": [], "next": "again"})
    with pytest.raises(Failed, match="does not end"):
        endless.slices.list()

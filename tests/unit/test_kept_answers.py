"""Answers that are kept while the database is unchanged: never an old one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import SHA, Service
from flask.testing import FlaskClient
from sqlalchemy.engine import Connection
from werkzeug.test import TestResponse

import slicemgr.store
from slicemgr.service.views import slices as slice_views
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app

URL = "/api/v1/slices"


@pytest.fixture
def filled(both_stores: str, tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as service:
        service.fill()
        service.client = client_of(service)  # type: ignore[attr-defined]
        get(service)  # notes the use of the token, which is a change
        yield service


def client_of(service: Service) -> FlaskClient:
    client = service.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
    return client


def get(service: Service, query: str = "", **headers: str) -> TestResponse:
    client: FlaskClient = service.client  # type: ignore[attr-defined]
    return client.get(URL + query, headers=headers)


@contextmanager
def reads(store: Store) -> Iterator[list[str]]:
    """The statements that read slices."""
    found: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM slices" in statement or "FROM tokens" in statement:
            found.append(statement)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(store.engine, "before_cursor_execute", note)


def rows_of(service: Service) -> list[Any]:
    with service.store.read() as c:
        return slice_views.slices(c)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_an_answer_is_read_once_while_nothing_changes(filled: Service) -> None:
    first = get(filled)
    with reads(filled.store) as statements:
        again = get(filled)
    assert not statements and again.data == first.data and again.json == {"slices": rows_of(filled)}
    filled.change()
    with reads(filled.store) as statements:
        assert get(filled).data == first.data
    assert len(statements) == 2  # the token and the slices


def changes(service: Service) -> dict[str, Callable[[Connection], Any]]:
    """A change in each table that the answer depends on."""
    [one] = rows_of(service)
    sliver = t.slivers.c.id == one["slivers"][0]["id"]
    return {
        "slices": lambda c: c.execute(t.slices.update().values(lease_notice="soon")),
        "slivers": lambda c: c.execute(t.slivers.update().where(sliver).values(usage_working=12345)),
        "images": lambda c: c.execute(t.images.update().where(t.images.c.sha256 == SHA).values(name="renamed")),
        "lease_rules": lambda c: c.execute(t.lease_rules.update().values(exempt=True)),
        "snapshots": lambda c: c.execute(t.snapshots.delete()),
        "nodes": lambda c: c.execute(t.nodes.update().values(lost=True, silent_since=utcnow())),
    }


def stale(service: Service) -> list[str]:
    """The tables whose change does not reach the answer."""
    found = []
    for name, change in changes(service).items():
        before = get(service)
        with service.store.write() as c:
            change(c)
        after = get(service)
        if after.json != {"slices": rows_of(service)} or after.headers["ETag"] == before.headers["ETag"]:
            found.append(name)
    return found


def test_a_change_in_each_table_reaches_the_answer(filled: Service) -> None:
    assert stale(filled) == []


@pytest.mark.parametrize("ignored", ["slices", "slivers", "images", "lease_rules", "snapshots", "nodes"])
def test_a_version_that_ignores_a_table_would_be_noticed(
    filled: Service, ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    def version(store: Store) -> Hashable:
        with store.read() as c:
            names = [name for name in changes(filled) if name != ignored]
            return str([c.execute(t.metadata.tables[name].select()).all() for name in names])

    monkeypatch.setattr(Store, "version", version)
    assert stale(filled) == [ignored]


def test_a_change_in_any_table_is_a_new_version(filled: Service) -> None:
    seen = [filled.store.version()]
    for table in reversed(t.metadata.sorted_tables):
        assert filled.store.version() == seen[-1] is not None
        with filled.store.write() as c:
            assert c.execute(table.delete()).rowcount > 0, table.name
        seen.append(filled.store.version())
    assert len(set(seen)) == len(t.metadata.sorted_tables) + 1


def test_what_is_undone_or_only_read_is_none(filled: Service) -> None:
    before = filled.store.version()
    rows_of(filled)
    assert filled.store.version() == before is not None
    with filled.store.whole() as c:
        c.execute(t.slices.delete())
        assert filled.store.version() is None, "others do not see it"
        c.rollback()


def test_another_process_sees_the_change_and_has_the_same_tags(filled: Service) -> None:
    with slicemgr.store.open(filled.config) as store:
        other = create_app(filled.config, store).test_client()
        other.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {filled.token()}"
        before = get(filled)
        assert other.get(URL).headers["ETag"] == before.headers["ETag"]
        with store.write() as c:
            c.execute(t.slices.update().values(lease_notice="soon"))
        tag = {"If-None-Match": before.headers["ETag"]}
        answers = [get(filled, **tag), other.get(URL, headers=tag)]
        assert [one.status_code for one in answers] == [200, 200] and answers[0].data == answers[1].data


def test_without_the_connection_for_versions_nothing_is_kept(filled: Service) -> None:
    first, version = get(filled), filled.store.version()
    filled.store._versions._connection.close()
    with reads(filled.store) as statements:
        assert get(filled).data == first.data
    assert len(statements) == 2
    assert filled.store.version() not in (None, version), "the database may have been restored meanwhile"


def test_a_closed_store_gets_no_connection_again(filled: Service) -> None:
    """A request can still run then."""
    with slicemgr.store.open(filled.config) as store:
        assert store.version() is not None
    assert store.version() is None
    assert store._versions._connection is None


# --- conditional requests ---------------------------------------------------------------------------------------------


def test_a_client_that_has_the_answer_gets_304(filled: Service) -> None:
    first = get(filled)
    tag = first.headers["ETag"]
    assert not tag.startswith("W/") and first.headers["Cache-Control"] == "private, no-cache"
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = get(filled, **{"If-None-Match": given})
        assert (answer.status_code, answer.data, answer.headers["ETag"]) == (304, b"", tag)
    filled.change()
    assert get(filled, **{"If-None-Match": tag}).status_code == 304, "the rows of the answer are the same"
    for given in ('"x"', tag.replace('"', "")[:-1], "W/"):
        assert get(filled, **{"If-None-Match": given}).status_code == 200
    filled.create("another")
    assert len(get(filled, **{"If-None-Match": tag}).get_json()["slices"]) == 2


def test_errors_are_not_kept(filled: Service) -> None:
    for _ in range(2):
        assert get(filled, "?type=odd").status_code == 422
    assert get(filled, "?type=lxc").status_code == 200


def test_filters_and_pages_have_answers_of_their_own(filled: Service) -> None:
    filled.create("another")
    for _ in range(2):
        names = {query: [one["name"] for one in get(filled, query).get_json()["slices"]] for query in ("", "?prefix=a")}
        assert names == {"": ["another", "exp"], "?prefix=a": ["another"]}
        cursor = get(filled, "?limit=1").get_json()["next"]
        assert [one["name"] for one in get(filled, f"?limit=1&cursor={cursor}").get_json()["slices"]] == ["exp"]

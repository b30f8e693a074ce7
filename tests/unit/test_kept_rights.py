"""Answers and tokens that are kept while the database is unchanged: not those of another user, within their memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection
from tenants import Tenants

from slicemgr.store import tables as t
from slicemgr.store.kept import Kept
from slicemgr.store.updates import utcnow
from slicemgr.web.kept_answers import _key

URL = "/api/v1/slices"
EVERYBODY = ("root", "alice", "bob", "dave", "carol")


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path) as made:
        for who in EVERYBODY:
            made.client(who).get(URL)  # notes the use of the tokens
        yield made


def seen_by(tenants: Tenants, who: str) -> Any:
    return tenants.client(who).get(URL).get_json()["slices"]


def test_users_see_their_own(tenants: Tenants) -> None:
    """One after the other, twice, without a change meanwhile."""
    projects = {who: {one["project"] for one in seen_by(tenants, who)} for who in EVERYBODY}
    version = tenants.store.version()
    for who in EVERYBODY:
        assert {one["project"] for one in seen_by(tenants, who)} == projects[who]
    assert tenants.store.version() == version
    assert "lab" in projects["bob"] and "lab" not in projects["carol"] and projects["carol"] < projects["root"]


def test_answers_without_the_caller_in_their_key_would_be_noticed(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr("slicemgr.web.kept_answers._key", lambda: b"everybody's")
    assert seen_by(tenants, "bob") == seen_by(tenants, "carol")


def test_the_tag_of_another_user_tells_nothing(tenants: Tenants) -> None:
    tag = tenants.client("bob").get(URL).headers["ETag"]
    assert tenants.client("carol").get(URL, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda c: c.execute(t.tokens.delete()), 401),
        (lambda c: c.execute(t.users.update().values(enabled=False)), 401),
        (lambda c: c.execute(t.members.delete()), 200),
    ],
    ids=["token", "account", "membership"],
)
def test_lost_rights_end_at_once(tenants: Tenants, change: Callable[[Connection], Any], status: int) -> None:
    bob = tenants.client("bob")
    tag = bob.get(URL).headers["ETag"]
    assert bob.get(URL, headers={"If-None-Match": tag}).status_code == 304
    with tenants.store.write() as c:
        change(c)
    answer = bob.get(URL, headers={"If-None-Match": tag})
    assert answer.status_code == status and not answer.get_json().get("slices")


def test_a_token_expires_without_a_change(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    with tenants.store.write() as c:
        c.execute(t.tokens.update().values(expires_at=utcnow() + timedelta(hours=1), used_at=utcnow()))
    bob = tenants.client("bob")
    assert bob.get(URL).status_code == bob.get(URL).status_code == 200
    later = utcnow() + timedelta(hours=1)
    monkeypatch.setattr("slicemgr.service.accounts.authentication.utcnow", lambda: later)
    assert bob.get(URL).status_code == 401


# --- memory -----------------------------------------------------------------------------------------------------------


def test_one_owner_does_not_drive_out_another() -> None:
    kept: Kept[int] = Kept(40_000, 60.0)
    assert kept.get(1, "a") is None
    kept.put(1, "a", 0, 1000, "alice")
    for number in range(1000):
        kept.put(1, number, number, 1000, "mallory")
    assert kept.get(1, "a") == 0 and kept.get(1, 999) == 999 and kept.get(1, 0) is None
    for number in range(1000):
        kept.put(1, f"{number}", number, 1000, f"user-{number}")
    assert kept._sizes.total() <= 40_000 and kept._sizes.total() == sum(one.size for one in kept._entries.values())
    kept.put(1, "large", 0, 10_001, "alice")
    assert kept.get(1, "large") is None


def test_values_of_another_version_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Kept[str] = Kept(1 << 20, 60.0)
    assert kept.get(1, "a") is None
    kept.put(1, "a", "one", 1, "alice")
    kept.put(2, "a", "two", 1, "alice")
    assert kept.get(1, "a") == "one"
    assert kept.get(2, "a") is None and not kept._entries and not kept._sizes
    kept.put(1, "a", "late", 1, "alice")
    assert kept.get(2, "a") is None
    assert kept.get(None, "a") is None
    kept.put(None, "a", "unknown", 1, "alice")
    assert kept.get(None, "a") is None
    assert kept.get(3, "b") is None
    kept.put(3, "b", "old", 1, "alice")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert kept.get(3, "b") is None and not kept._entries


def test_keys_have_one_length(tenants: Tenants) -> None:
    lengths = set()
    for query in ("", "x" * 4000):
        with tenants.app.test_request_context(URL, query_string=query, headers={"Authorization": "Bearer é"}):
            lengths.add(len(_key()))
    assert len(lengths) == 1

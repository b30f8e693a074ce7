"""The last audit of a node: stored by an admin, refused if invalid, and shown unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from browsers import Browser
from tenants import AUDIT, Tenants

URL = "/api/v1/nodes/node1/audit"


def put(tenants: Tenants, body: Any) -> Any:
    return tenants.client("root").put(URL, json=body)


def test_the_last_one_counts(tenants: Tenants) -> None:
    bad = {**AUDIT["rows"][0], "row": "devices", "seen": "loop=ok", "verdict": "fail"}  # type: ignore[dict-item]
    assert put(tenants, {**AUDIT, "rows": [*AUDIT["rows"], bad]}).status_code == 200
    found = tenants.client("root").get(URL).get_json()
    assert (found["failed"], len(found["rows"]), found["user"]) == (1, 2, "root")
    assert found["began_at"].startswith("2026-01-31T12:00:00")
    assert put(tenants, AUDIT).get_json()["failed"] == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rows": []}, "rows"),
        ({"rows": "all"}, "rows"),
        ({"rows": [{"row": "x"}]}, "rows[0]"),
        ({"rows": [{**AUDIT["rows"][0], "seen": "\x1b[2J"}]}, "rows[0].seen"),  # type: ignore[dict-item]
        ({"rows": [{**AUDIT["rows"][0], "seen": "x" * 301}]}, "rows[0].seen"),  # type: ignore[dict-item]
        ({"rows": [{**AUDIT["rows"][0], "verdict": "maybe"}]}, "rows[0].verdict"),  # type: ignore[dict-item]
        ({"began_at": "yesterday"}, "began_at"),
        ({"began_at": "2026-01-31T12:00:00"}, "began_at"),
        ({"node": "other"}, "node"),
    ],
)
def test_what_makes_no_sense_is_refused(tenants: Tenants, change: dict[str, Any], field: str) -> None:
    before = tenants.client("root").get(URL).get_json()
    answer = put(tenants, {**AUDIT, **change})
    assert (answer.status_code, answer.get_json()["field"]) == (422, field)
    assert tenants.client("root").get(URL).get_json() == before


def test_what_does_not_apply_is_shown_with_its_reason_and_is_no_failure(tenants: Tenants) -> None:
    other = {"row": "devices", "kind": "kvm", "expected": "", "seen": "own hardware", "verdict": "not applicable"}
    assert put(tenants, {**AUDIT, "rows": [*AUDIT["rows"], other]}).get_json()["failed"] == 0
    text = Browser(tenants, "root").get("/nodes/node1/audit").text
    assert "All 1 checks passed. 1 check did not apply." in text
    assert text.index("a filter") < text.index("Not applicable") < text.index("own hardware")


def test_an_unknown_node_has_none(tenants: Tenants) -> None:
    assert tenants.client("root").put("/api/v1/nodes/node9/audit", json=AUDIT).status_code == 404
    assert tenants.client("root").get("/api/v1/nodes/node9/audit").status_code == 404


def test_the_page_shows_what_failed_first(tenants: Tenants) -> None:
    bad = {**AUDIT["rows"][0], "row": "<b>devices</b>", "seen": "loop=ok", "verdict": "fail"}  # type: ignore[dict-item]
    put(tenants, {**AUDIT, "rows": [*AUDIT["rows"], bad]})
    text = Browser(tenants, "root").get("/nodes/node1/audit").text
    assert "1 check of 2 failed" in text and "&lt;b&gt;devices" in text
    assert text.index("loop=ok") < text.index("a filter", text.index("Passed"))

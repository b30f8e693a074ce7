"""Visibility of published experiments on pages and over REST; shown reports cannot execute anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import published
import pytest
from browsers import Browser
from tenants import Tenants

from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.experiments import publications
from slicemgr.web import foreign
from slicemgr.web.pages import shell

API = "/api/v1/experiments"
HIDDEN = "cd34" * 4


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    """Tenants with one public and one hidden experiment."""
    with Tenants(tmp_path) as made:
        with made.store.write() as c:
            published.add(c, made.config, HIDDEN, name="Not yet", public=False)
        yield made


def directives(policy: str) -> dict[str, str]:
    """Of a Content-Security-Policy."""
    parts = [one.split(maxsplit=1) for one in policy.split(";") if one.strip()]
    return {one[0]: " ".join(one[1:]) for one in parts}


def harmless(policy: str) -> list[str]:
    """The headers that a document lacks to be harmless."""
    said = directives(policy)
    wrong = [] if said.get("sandbox", "?") == "" else ["sandbox"]
    wrong += [] if said.get("default-src") == "'none'" else ["default-src"]
    allowed = {"style-src": "'unsafe-inline'", "img-src": "data:"}
    wrong += [
        name for name in said if name.endswith("-src") and name != "default-src" and said[name] != allowed.get(name)
    ]
    wrong += [] if said.get("form-action") == "'none'" else ["form-action"]
    return wrong


def test_what_is_hidden_is_the_admins(tenants: Tenants) -> None:
    """For others it does not exist: in the list, by its address, its files, and for changes."""
    public = tenants.found["experiment"]
    for who in ("carol", "bob", "alice", "reader"):
        client = tenants.client(who)
        assert [one["id"] for one in client.get(API).get_json()["experiments"]] == [public]
        for path in (f"{API}/{HIDDEN}", f"{API}/{HIDDEN}/files/report.html"):
            assert client.get(path).status_code == 404
        if who != "reader":
            page = Browser(tenants, who)
            assert "Not yet" not in page.get("/experiments").text and "Scale to 200" in page.get("/experiments").text
            for path in ("", "/files/report.html", "/show", "/delete"):
                assert page.get(f"/experiments/{HIDDEN}{path}").status_code == 404
            assert page.post(f"/experiments/{HIDDEN}/show").status_code == 404
            assert page.post(f"/experiments/{HIDDEN}/describe", {"name": "x"}).status_code == 404
        assert client.patch(f"{API}/{HIDDEN}", json={"public": True}).status_code in (403, 404)
        assert client.delete(f"{API}/{HIDDEN}").status_code in (403, 404)
    assert len(tenants.client("root").get(API).get_json()["experiments"]) == 2
    assert tenants.client("root").get(f"{API}/{HIDDEN}").get_json()["public"] is False


def test_without_the_look_it_would_be_seen(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(access, "see_experiment", lambda by, public, id: None)
    answer = tenants.client("carol").get(f"{API}/{HIDDEN}/files/report.html", buffered=True)
    assert answer.status_code == 200


@pytest.mark.parametrize("name", published.content())
def test_a_file_can_do_nothing(tenants: Tenants, name: str) -> None:
    """On pages as over REST, for every kind of file."""
    id = tenants.found["experiment"]
    answers = [
        Browser(tenants, "carol").get(f"/experiments/{id}/files/{name}"),
        tenants.client("carol").get(f"{API}/{id}/files/{name}", buffered=True),
    ]
    for answer in answers:
        assert answer.status_code == 200 and answer.data == published.content()[name]
        assert harmless(answer.headers["Content-Security-Policy"]) == []
        assert directives(answer.headers["Content-Security-Policy"])["frame-ancestors"] == "'self'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "unsafe-none", "or a window of its own stays empty"
        assert "no-cache" in answer.headers["Cache-Control"]


@pytest.mark.parametrize(
    ("weak", "missing"),
    [
        (foreign.POLICY.replace("sandbox; ", ""), "sandbox"),
        (foreign.POLICY.replace("sandbox;", "sandbox allow-scripts;"), "sandbox"),
        (foreign.POLICY.replace("default-src 'none'", "default-src 'self'"), "default-src"),
        (foreign.POLICY.replace("img-src data:", "img-src *"), "img-src"),
        (foreign.POLICY.replace("form-action 'none'; ", ""), "form-action"),
        (shell.POLICY, "sandbox"),
    ],
)
def test_a_weaker_policy_would_be_noticed(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, weak: str, missing: str
) -> None:
    """The control."""
    monkeypatch.setattr(foreign, "POLICY", weak)
    answer = tenants.client("carol").get(f"{API}/{tenants.found['experiment']}/files/report.html", buffered=True)
    assert missing in harmless(answer.headers["Content-Security-Policy"])


def test_the_page_shows_the_report_in_a_frame(tenants: Tenants) -> None:
    """Sandboxed by the frame, too; the page's own policy is that of all pages, and frames of ours."""
    id = tenants.found["experiment"]
    answer = Browser(tenants, "carol").get(f"/experiments/{id}")
    (frame,) = re.findall("<iframe[^>]*>", answer.text)
    assert ' sandbox=""' in frame and f'src="/experiments/{id}/files/report.html"' in frame and "title=" in frame
    said, usual = directives(answer.headers["Content-Security-Policy"]), directives(shell.POLICY)
    assert said == {**usual, "frame-src": "'self'"}
    for name in published.content():
        assert f'href="/experiments/{id}/files/{name}"' in answer.text
    assert "Delete" not in answer.text and "Name and note" not in answer.text


def test_words_of_a_run_are_words(tenants: Tenants) -> None:
    """Words from a file are shown as text, not as markup."""
    evil = "<b onclick=x>\u202e"
    with tenants.store.write() as c:
        told = {"name": evil, "summary": evil, "note": evil, "node": evil}
        published.add(c, tenants.config, "ef56" * 4, **told)
    for who in ("carol", "root"):
        for path in ("/experiments", "/experiments/" + "ef56" * 4, f"/experiments/{'ef56' * 4}/hide"):
            text = Browser(tenants, who).get(path).text.split('<details class="panel fold')[0]
            if who == "root" or not path.endswith("hide"):
                assert "&lt;b onclick" in text and "<b onclick" not in text and "\u202e" not in text


def test_an_admin_describes_shows_hides_and_deletes(tenants: Tenants) -> None:
    """Each action follows a confirmation page; a second click has no further effect."""
    root, carol, place = Browser(tenants, "root"), Browser(tenants, "carol"), f"/experiments/{HIDDEN}"
    assert "badge held" in root.get("/experiments").text and "Show to all users" in root.get(place).text
    wrong = root.post(f"{place}/describe", {"name": "x" * 101, "note": "kept"})
    assert wrong.status_code == 422 and 'id="error-name"' in wrong.text and "kept" in wrong.text
    assert root.post(f"{place}/describe", {"name": "Better", "note": "One\n two."}).headers["Location"] == place
    once = root.once(f"{place}/show")
    for _ in range(2):
        assert root.post(f"{place}/show", {"once": once}).headers["Location"] == place
    text = carol.get(place).text
    assert "Better" in text and "One two." in text and "badge held" not in text
    assert root.get(f"{place}/hide").status_code == 200 and root.post(f"{place}/hide").status_code == 303
    assert carol.get(place).status_code == 404
    assert "published again only" in root.get(f"{place}/delete").text
    assert root.post(f"{place}/delete").headers["Location"] == "/experiments"
    assert root.get(place).status_code == 404 and root.get(f"{place}/explode").status_code == 404
    actions = [action for _, action, _ in tenants.events() if action.startswith("experiment")]
    assert actions == [f"experiment {one}" for one in ("change", "show", "hide", "delete")]
    assert not (tenants.config.experiments_dir / HIDDEN).exists()


def test_where_there_is_none_it_says_what_to_do(tenants: Tenants) -> None:
    root = Principal("root", True)
    for id in (HIDDEN, tenants.found["experiment"]):
        publications.delete(tenants.store, tenants.config, id, root)
    assert "slicectl bench publish" in Browser(tenants, "root").get("/experiments").text
    text = Browser(tenants, "carol").get("/experiments").text
    assert "No experiments" in text and 'href="/slices"' in text and "slicectl bench" not in text


def test_the_list_has_pages(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicemgr.web.pages.experiments.PAGE", 1)
    root = Browser(tenants, "root")
    first, second = root.get("/experiments").text, root.get("/experiments?page=2").text
    assert ("Not yet" in first, "Scale to 200" in first) == (True, False), "the newest first"
    assert "Scale to 200" in second and "1 of 2" in first and root.get("/experiments?page=-3").status_code == 200

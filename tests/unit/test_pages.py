"""The pages over the test client: cookies, headers, forms, stale and repeated requests."""

from __future__ import annotations

import gzip
import posixpath
import re
import threading
from datetime import timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import KEY
from browsers import Browser
from tenants import BOB, PASSWORD, Tenants, ask
from werkzeug.test import TestResponse

from slicemgr.config import PACKAGE, WebConfig
from slicemgr.service.accounts import users
from slicemgr.store import tables as t
from slicemgr.web.pages import assets, browser_session

FORM = {"project": "lab", "type": "lxc", "image": "debian-12", "size": "small", "name": "new", "more_keys": KEY}


@pytest.fixture
def bob(tenants: Tenants) -> Browser:
    return Browser(tenants, "bob")


def errors(text: str) -> dict[str, str]:
    """The errors of a page, by field."""
    return dict(re.findall(r'class="error" id="error-([a-z_]+)">([^<]*)<', text))


def names(tenants: Tenants) -> list[str]:
    with tenants.store.read() as c:
        return list(c.scalars(sa.select(t.slices.c.name).order_by(t.slices.c.created_at, t.slices.c.name)))


def signed_in(browser: Browser, password: str = PASSWORD, **fields: str) -> Any:
    return browser.post("/sign-in", {"user": "bob", "password": password, **fields})


# signing in


def cookies(answer: TestResponse) -> SimpleCookie:
    """The cookies of an answer."""
    found = SimpleCookie()
    for header in answer.headers.getlist("Set-Cookie"):
        found.load(header)
    return found


def test_the_cookie_goes_over_tls_alone_and_to_no_script(tenants: Tenants) -> None:
    stranger = Browser(tenants)
    answer = signed_in(stranger)
    for name in ("__Host-slicemgr", "__Host-slicemgr-known"):
        morsel = cookies(answer)[name]
        assert (morsel["path"], morsel["samesite"], morsel["domain"]) == ("/", "Lax", "")
        assert morsel["secure"] and morsel["httponly"] and (morsel["expires"] or int(morsel["max-age"]) > 0)
    assert stranger.get("/slices").status_code == 200


def test_over_plain_http_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Tenants(tmp_path, web=WebConfig(cookie="plain")) as tenants:
        set_here = cookies(signed_in(Browser(tenants)))
    for name in ("slicemgr", "slicemgr-known"):
        assert not set_here[name]["secure"] and set_here[name]["httponly"]
    assert "take over sessions" in caplog.text


def test_signing_in_changes_what_the_cookie_holds(tenants: Tenants) -> None:
    """A session that was planted before is invalid afterwards; a copy of the cookie is invalid after signing out."""
    stranger = Browser(tenants)
    before = stranger.proof()
    signed_in(stranger)
    assert stranger.post("/sign-out", {"csrf_token": before}, proof=False).status_code == 400
    cookie = stranger.client.get_cookie("__Host-slicemgr")
    assert cookie is not None
    assert stranger.post("/sign-out").headers["Location"] == "/sign-in"
    thief = Browser(tenants)
    thief.client.set_cookie("__Host-slicemgr", cookie.value)
    assert thief.get("/slices").headers["Location"].startswith("/sign-in")


def test_a_cookie_that_was_changed_is_none(tenants: Tenants, bob: Browser) -> None:
    cookie = bob.client.get_cookie("__Host-slicemgr")
    assert cookie is not None
    for value in (cookie.value[:-2], "x" + cookie.value, ""):
        bob.client.set_cookie("__Host-slicemgr", value)
        assert bob.get("/slices").status_code == 303


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/slices?q=exp", "/slices?q=exp"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
        ("", "/"),
    ],
)
def test_where_one_lands_is_here(tenants: Tenants, target: str, place: str) -> None:
    assert signed_in(Browser(tenants), next=target).headers["Location"] == place
    assert browser_session.local(target) == place


def test_too_many_failures(tenants: Tenants) -> None:
    """By account, as REST counts them; the right password does not help until time has passed."""
    stranger = Browser(tenants)
    free = tenants.config.people.failures
    assert [signed_in(stranger, "wrong password").status_code for _ in range(free)] == [401] * free
    tries = (signed_in(stranger, "wrong password").status_code for _ in range(8))
    assert 429 in tries  # the wait doubles with each: on a slow machine the first ones are shorter than an attempt
    answer = signed_in(stranger)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
    assert PASSWORD not in answer.text and "wrong password" not in answer.text


def test_an_invitation_is_used_up(tenants: Tenants) -> None:
    secret = users.invite(tenants.store, tenants.config, {"name": "grace"}, tenants.principal("root")).secret
    person, path = Browser(tenants), f"/invitation/{secret}"
    assert person.get(path).status_code == person.get(path).status_code == 200, "looking uses nothing up"
    assert errors(person.post(path, {"password": PASSWORD, "repeated": "x"}).text)["repeated"]
    assert errors(person.post(path, {"password": "short", "repeated": "short"}).text)["password"]
    assert person.post(path, {"password": PASSWORD, "repeated": PASSWORD}).headers["Location"] == "/slices"
    assert "Welcome, grace" in person.get("/slices").text
    assert person.get(path).status_code == 404


# all answers


@pytest.mark.parametrize("path", ["/sign-in", "/slices", "/new", "/nowhere", "/api/v1/slices", "/static/x/app.js"])
def test_headers(bob: Browser, path: str) -> None:
    answer = bob.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    if answer.mimetype == "text/html":
        assert answer.headers["Cache-Control"] == "no-store", "the back button shows nothing after signing out"


def test_files_may_be_kept_under_the_name_of_their_content(bob: Browser) -> None:
    url = f"/static/{assets.digest()}/app.css"
    assert url in bob.get("/slices").text
    kept, old = bob.get(url), bob.get("/static/000000000000/app.css")
    assert "immutable" in kept.headers["Cache-Control"] and "max-age=31536000" in kept.headers["Cache-Control"]
    assert old.data == kept.data and "immutable" not in old.headers["Cache-Control"]
    for path in ("../pages/browser_session.py", "%2e%2e/pages/browser_session.py", "nothing.css"):
        assert bob.get(f"/static/{assets.digest()}/{path}").status_code == 404


def test_a_first_visit_is_light(bob: Browser) -> None:
    """Under 300 KiB with everything that a page loads, uncompressed."""
    files = sum(
        (assets.FOLDER / name).stat().st_size for name in ("app.css", "app.js", "icon.svg", "vendor/htmx.min.js")
    )
    assert files + len(bob.get("/new").data) < 300 << 10


def loaded(browser: Browser, path: str) -> list[str]:
    """The files that a page loads, including imported modules."""
    wanted = re.findall(rf'(?:src|href)="(/static/{assets.digest()}/[^"]+)"', browser.get(path).text)
    for url in wanted:
        if url.endswith((".js", ".mjs")):
            modules = re.findall(r'^\s*(?:im|ex)port\b[^;"\']*["\'](\.[^"\']+)', browser.get(url).text, re.M)
            more = [posixpath.normpath(posixpath.join(posixpath.dirname(url), one)) for one in modules]
            wanted += [one for one in more if one not in wanted]
    return wanted


@pytest.mark.parametrize(("what", "most"), [("console", 150 << 10), ("screen", 300 << 10)])
def test_a_console_is_light(tenants: Tenants, bob: Browser, what: str, most: int) -> None:
    """With compression, which browsers accept; uncompressed, a console would exceed the limit."""
    with tenants.store.write() as c:
        c.execute(t.slices.update().values(type="kvm"))
    files, weights = loaded(bob, f"/slices/exp/0/{what}?project=lab"), []
    for accepted in ("gzip, deflate, br", "identity"):
        answers = [bob.get(url, headers={"Accept-Encoding": accepted}) for url in files]
        assert {one.status_code for one in answers} == {200}
        weights.append(sum(len(one.data) for one in answers))
    assert weights[0] < most <= 300 << 10 < weights[1], f"{len(files)} files: {weights}"


def test_what_is_packed_is_what_there_is(bob: Browser) -> None:
    """Also for a conditional request; and not for clients without compression."""
    url, content = f"/static/{assets.digest()}/app.css", (assets.FOLDER / "app.css").read_bytes()
    small = bob.get(url, headers={"Accept-Encoding": "gzip"})
    assert (small.headers["Content-Encoding"], small.mimetype) == ("gzip", "text/css")
    assert gzip.decompress(small.data) == content and len(small.data) < len(content) / 3
    assert "immutable" in small.headers["Cache-Control"]
    again = bob.get(url, headers={"Accept-Encoding": "gzip", "If-None-Match": small.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    for accepted in ("", "identity", "gzip;q=0", "br"):
        plain = bob.get(url, headers={"Accept-Encoding": accepted, "If-None-Match": small.headers["ETag"]})
        assert plain.data == content and "Content-Encoding" not in plain.headers
    assert small.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in bob.get("/slices", headers={"Accept-Encoding": "gzip"}).headers, "it has secrets"


def test_a_broken_page_tells_nothing_of_its_insides(
    tenants: Tenants, bob: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr("slicemgr.service.views.slices.slices", broken)
    answer = bob.get("/slices")
    assert answer.status_code == 500 and "secret" not in answer.text
    number = re.search(r"nexpected error ([0-9a-f]{8})", answer.text)
    assert number and number[1] in caplog.text and "the secret of the house" in caplog.text


def test_a_form_that_is_too_large(bob: Browser) -> None:
    answer = bob.post("/new", {**FORM, "user_data": "x" * (5 << 20)})
    assert answer.status_code == 413 and answer.mimetype == "text/html"


# request of a slice


def test_the_same_form_twice_makes_one_slice(tenants: Tenants, bob: Browser) -> None:
    fields = {**FORM, "once": bob.once("/new")}
    answers = [bob.post("/new", fields) for _ in range(2)]
    assert [one.headers["Location"] for one in answers] == ["/slices/new?project=lab"] * 2
    assert names(tenants).count("new") == 1
    assert errors(bob.post("/new", {**FORM, "once": bob.once("/new")}).text)["name"], "another form is another wish"
    assert (
        bob.post("/new", {**FORM, "name": "none", "once": fields["once"]}).headers["Location"].startswith("/slices/new")
    )
    alice = Browser(tenants, "alice")
    assert alice.post("/new", {**fields, "name": "hers"}).headers["Location"] == "/slices/hers?project=lab"


def test_a_form_is_known_after_a_restart_of_the_service(tenants: Tenants, bob: Browser) -> None:
    """Its answer is in the database; formerly it was in the memory of the process, which caused an error."""
    fields = {**FORM, "once": bob.once("/new")}
    first = bob.post("/new", fields).headers["Location"]
    del tenants.app
    assert Browser(tenants, "bob").post("/new", fields).headers["Location"] == first
    assert names(tenants).count("new") == 1


def test_two_clicks_at_once(tenants: Tenants, bob: Browser) -> None:
    """The second waits for the answer of the first."""
    fields = {**FORM, "once": bob.once("/new"), "csrf_token": bob.proof()}
    cookie = bob.client.get_cookie("__Host-slicemgr")
    assert cookie is not None
    seen: list[str] = []

    def click() -> None:
        client = tenants.app.test_client()
        client.set_cookie("__Host-slicemgr", cookie.value)
        seen.append(client.post("/new", data=fields).headers.get("Location", "refused"))

    clicks = [threading.Thread(target=click) for _ in range(4)]
    for one in clicks:
        one.start()
    for one in clicks:
        one.join()
    assert seen == ["/slices/new?project=lab"] * 4 and names(tenants).count("new") == 1


def test_without_the_key_it_would_be_refused(tenants: Tenants, bob: Browser) -> None:
    """The control."""
    assert [bob.post("/new", FORM).status_code for _ in range(2)] == [303, 409]


def test_a_refused_form_may_come_again(tenants: Tenants, bob: Browser) -> None:
    fields = {**FORM, "once": bob.once("/new"), "name": "UPPER"}
    assert bob.post("/new", fields).status_code == 422
    assert bob.post("/new", {**fields, "name": "lower"}).status_code == 303


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "a" * 41}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "ℯxp"}, "name"),
        ({"name": "<script>alert(1)</script>"}, "name"),
        ({"type": "vm"}, "type"),
        ({"image": "nothing"}, "image"),
        ({"size": "own", "memory": "lots"}, "memory"),
        ({"size": "own", "cpu": "-1"}, "cpu"),
        ({"size": "own", "disk": "1"}, "disk"),
        ({"count": "0"}, "count"),
        ({"count": "1.5"}, "count"),
        ({"lease": "soon"}, "lease"),
        ({"ports": "many"}, "ports"),
        ({"more_keys": "ssh-ed25519 x"}, "more_keys"),
        ({"more_keys": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"}, "more_keys"),
        ({"user_data": "what is this"}, "user_data"),
        ({"net_in": "5 apples"}, "net_in"),
        ({"reason": "x" * 2001}, "reason"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_is_kept(
    tenants: Tenants, bob: Browser, wrong: dict[str, str], field: str
) -> None:
    answer = bob.post("/new", {**FORM, "count": "2", **wrong})
    assert answer.status_code == 422 and field in errors(answer.text), answer.text
    assert 'aria-invalid="true"' in answer.text and 'role="alert"' in answer.text
    assert "new" not in names(tenants)
    assert "<script>alert" not in answer.text and "PRIVATE KEY-----\nabc" not in errors(answer.text)[field]
    typed = wrong.get("name", "new")
    assert not typed.isascii() or "<" in typed or f'name="name" type="text" value="{typed}"' in answer.text


def test_without_a_name_one_is_generated(tenants: Tenants, bob: Browser) -> None:
    answer = bob.post("/new", {**FORM, "name": ""})
    assert answer.status_code == 303 and re.fullmatch(
        r"/slices/lxc-[a-z0-9]{4}\?project=lab", answer.headers["Location"]
    )


def test_beyond_the_quota_a_reason_makes_a_request(tenants: Tenants, bob: Browser) -> None:
    first = bob.post("/new", {**FORM, "count": "30"})
    assert first.status_code == 403 and "reason" in errors(first.text) and "slivers requested" in first.text
    answer = bob.post("/new", {**FORM, "count": "30", "reason": "a large experiment"})
    told = bob.get(answer.headers["Location"]).text
    assert re.match("/requests/[^/]+$", answer.headers["Location"]) and "a large experiment" in told
    assert "waits for the decision of a PI of lab" in told and "new" not in names(tenants)
    assert "Waiting requests" in bob.get("/slices").text


@pytest.mark.parametrize(
    "odd", [{}, {"count": "x"}, {"count": "9" * 400}, {"lease": "99999999d"}, {"memory": "1e99", "size": "own"}]
)
def test_the_cost_of_a_half_filled_form(bob: Browser, odd: dict[str, str]) -> None:
    answer = bob.post("/new/cost", {"project": "lab", **odd})
    assert answer.status_code == 200 and "Slivers" in answer.text


def test_the_cost_is_what_it_will_be(tenants: Tenants, bob: Browser) -> None:
    """The cost shown before the request equals the allocation after it."""
    told = bob.post("/new/cost", {**FORM, "count": "3"}).text
    assert '1 <b class="more">+ 3</b> of 8' in told and "data-over" not in told
    bob.post("/new", {**FORM, "count": "3"})
    assert '4 <b class="more">+ 1</b> of 8' in bob.post("/new/cost", {"project": "lab"}).text
    assert "data-over" in bob.post("/new/cost", {**FORM, "count": "5"}).text


# a slice's page


def test_an_older_slice_of_that_name_is_left_alone(tenants: Tenants, bob: Browser) -> None:
    """The page of a slice that was deleted and created again does not change the new one."""
    ask(tenants, BOB, "twin")
    page = bob.get("/slices/twin?project=lab").text
    found = re.search(r'name="id" value="([^"]+)"', page)
    assert found
    with tenants.store.write() as c:
        c.execute(t.slices.delete().where(t.slices.c.name == "twin"))
    ask(tenants, BOB, "twin")
    before = tenants.events()
    for path, fields in (("act", {"action": "stop"}), ("renew", {"lease": "9d"}), ("delete", {"typed": "twin"})):
        answer = bob.post(f"/slices/twin/{path}?project=lab", {**fields, "id": found[1]})
        assert answer.status_code == 409 and "earlier slice" in answer.text
    assert tenants.events() == before
    assert bob.post("/slices/twin/act?project=lab", {"action": "stop"}).status_code == 303


def test_what_is_gone_says_so(tenants: Tenants, bob: Browser) -> None:
    live = bob.part("/slices/exp?project=lab")
    assert live.status_code == 200 and "<html" not in live.text
    with tenants.store.write() as c:
        c.execute(t.slices.delete())
    assert bob.part("/slices/exp?project=lab").status_code == 286, "which ends the looking"
    assert bob.get("/slices/exp?project=lab").status_code == 404
    assert bob.post("/slices/exp/act?project=lab", {"action": "stop"}).status_code == 404


@pytest.mark.parametrize("path", ["/slices", "/slices/exp?project=lab", "/operations/OPERATION"])
def test_a_part_that_did_not_change_is_not_sent_again(tenants: Tenants, bob: Browser, path: str) -> None:
    path = path.replace("OPERATION", tenants.found["operation"])
    first = re.search(r'hx-get="([^"]+seen=[0-9a-f]+)"', bob.get(path).text)
    assert first
    again = bob.part(first[1].replace("&amp;", "&"))
    assert (again.status_code, again.data) == (204, b"")
    with tenants.store.write() as c:
        c.execute(t.slivers.update().values(phase="failed", error="no room"))
        c.execute(t.operations.update().values(state="failed", error="no room"))
    assert bob.part(first[1].replace("&amp;", "&")).status_code == 200


def test_a_part_of_who_is_no_longer_signed_in_leads_to_the_door(tenants: Tenants, bob: Browser) -> None:
    with tenants.store.write() as c:
        c.execute(t.sessions.delete())
    answer = bob.part("/slices")
    assert answer.status_code == 204 and answer.headers["HX-Redirect"] == "/sign-in"


def test_the_granted_date_is_told(tenants: Tenants, bob: Browser) -> None:
    """It is shown instead of the requested one."""
    bob.post("/slices/exp/renew?project=lab", {"lease": "80d"})
    with tenants.store.read() as c:
        expires = c.scalar(sa.select(t.slices.c.expires_at).where(t.slices.c.name == "exp"))
        at = c.scalar(sa.select(sa.func.max(t.events.c.at)))
    assert expires - at <= tenants.config.quota.lease + timedelta(seconds=1)
    shown = bob.get("/slices/exp?project=lab").text
    assert f"{expires:%a %-d %b %Y, %H:%M} UTC. This is the longest lease that the project allows." in shown


def test_who_may_not_change_it_has_no_buttons(tenants: Tenants) -> None:
    """dave sees bob's slice; alice leads the project."""
    for who, may in (("dave", False), ("alice", True), ("bob", True)):
        page = Browser(tenants, who).get("/slices/exp?project=lab").text
        assert ('name="action"' in page, "/delete" in page, "/renew" in page) == (may, may, may)


def test_what_a_tenant_wrote_is_text(tenants: Tenants, bob: Browser) -> None:
    """Markup and direction marks in texts of other users are shown as text."""
    with tenants.store.write() as c:
        evil = "<img src=x onerror=alert(1)>\u202e"
        c.execute(t.slivers.update().values(error=evil, phase="failed"))
        c.execute(t.operations.update().values(error=evil, state="failed"))
    for path in ("/slices/exp?project=lab", f"/operations/{tenants.found['operation']}"):
        page = bob.get(path).text
        assert "<img" not in page and "\u202e" not in page and "&lt;img" in page


def test_the_list_is_filtered_and_paged(tenants: Tenants, bob: Browser) -> None:
    ask(tenants, BOB, "second", type="lxc")
    text = bob.part("/slices?q=sec").text
    assert "second" in text and ">exp<" not in text and "1 of 2 slices" in text
    assert "No matching slices" in bob.part("/slices?state=paused").text
    assert "No matching slices" in bob.part("/slices?q=" + "%F0%9F%A6%80" * 50).text
    assert bob.part("/slices?page=99").status_code == bob.part("/slices?page=x").status_code == 200


@pytest.mark.parametrize("path", ["/slices", "/slices/exp?project=lab", "/new", "/slices?q=s1"])
def test_queries_do_not_grow_with_slices(tenants: Tenants, bob: Browser, path: str) -> None:
    with tenants.store.write() as c:
        c.execute(t.quotas.delete())
    ask(tenants, BOB, "s0", count=2)
    few = queries(tenants, bob, path)
    for number in range(1, 12):
        ask(tenants, BOB, f"s{number}", count=3)
    assert queries(tenants, bob, path) == few


def queries(tenants: Tenants, browser: Browser, path: str) -> int:
    """How many statements a page takes."""
    said: list[Any] = []

    def listen(*args: Any) -> None:
        said.append(args[2])

    sa.event.listen(tenants.store.engine, "before_cursor_execute", listen)
    assert browser.get(path).status_code == 200
    sa.event.remove(tenants.store.engine, "before_cursor_execute", listen)
    return len(said)


def test_templates_use_no_filter_that_trusts() -> None:
    for path in (PACKAGE / "web" / "templates").rglob("*.html"):
        assert "|safe" not in path.read_text() and "autoescape" not in path.read_text(), path


def test_a_granted_request_offers_its_slice_until_it_is_deleted(tenants: Tenants, bob: Browser) -> None:
    r, id_ = t.requests, tenants.found["request"]
    with tenants.store.write() as c:
        granted = {"state": "granted", "operation": tenants.found["operation"], "name": "exp"}
        c.execute(r.update().where(r.c.id == id_).values(granted))
    assert "/slices/exp?project=lab" in bob.get(f"/requests/{id_}").text, "the control"
    with tenants.store.write() as c:
        c.execute(t.slices.delete().where(t.slices.c.name == "exp"))
    page = bob.get(f"/requests/{id_}").text
    assert "Show operation" in page and "/slices/exp" not in page

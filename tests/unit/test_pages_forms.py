"""Forms over the test client: the focus, the marks of the cost panel, a lost session, and the URLs of forms."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from browsers import Browser
from tenants import PASSWORD, Tenants
from test_pages import FORM, errors, names

from slicemgr.store import tables as t
from slicemgr.web.pages import kept_form

HERE = {"Origin": "http://localhost"}
FOCUSED = re.compile(r"<(\w+)([^>]*) autofocus[ >]")


@pytest.fixture
def bob(tenants: Tenants) -> Browser:
    return Browser(tenants, "bob")


def focused(text: str) -> list[str]:
    """The elements of a page that want the focus: the name of a field, or else the role."""
    return [
        "".join((re.findall(r' name="([^"]+)"', one) or re.findall(r' role="([^"]+)"', one))[:1])
        for _, one in FOCUSED.findall(text)
    ]


def described(text: str, field: str) -> bool:
    """Whether the field is marked as invalid and refers to its error."""
    (tag,) = re.findall(rf'<\w+[^>]* name="{field}"[^>]*>', text)
    return 'aria-invalid="true"' in tag and f"error-{field}" in tag.split('aria-describedby="')[1].split('"')[0]


# the focus


@pytest.mark.parametrize(
    ("path", "wrong", "field"),
    [
        ("/new", {**FORM, "name": "../x"}, "name"),
        ("/new", {**FORM, "size": "own", "memory": "lots", "disk": "1"}, "memory"),
        ("/new", {**FORM, "net_in": "5 apples"}, "net_in"),
        ("/new", {**FORM, "more_keys": "ssh-ed25519 x"}, "more_keys"),
        ("/new", {**FORM, "count": "30"}, "reason"),
        ("/slices/exp/resize?project=lab", {"disk": "lots"}, "disk"),
        ("/slices/exp/snapshots?project=lab", {"snapshot": "Upper"}, "snapshot"),
        ("/slices/exp/delete?project=lab", {"typed": "none"}, "typed"),
        ("/account/password", {"old": "x", "new": "", "repeated": ""}, "new"),
    ],
)
def test_the_first_invalid_field_is_focused(bob: Browser, path: str, wrong: dict[str, str], field: str) -> None:
    """It is marked as invalid, and refers to its error; no other element of the page asks for the focus."""
    answer = bob.post(path, wrong)
    assert answer.status_code >= 400 and field in errors(answer.text)
    assert focused(answer.text) == [field] and described(answer.text, field)


def test_without_an_error_the_usual_field_is_focused(bob: Browser) -> None:
    """The control; and an error that belongs to no field has the focus itself."""
    assert focused(bob.get("/new").text) == ["name"]
    assert focused(bob.get("/slices/exp?project=lab").text) == []
    answer = bob.post("/slices/exp/snapshots/before/clone?project=lab", {"name": "again", "disk": "900T"})
    assert focused(answer.text) in (["disk"], ["alert"])


# the cost panel


def marked(browser: Browser, **fields: str) -> list[str]:
    return re.findall(r'data-invalid="(\w+)"', browser.post("/new/cost", {**FORM, **fields}).text)


def test_the_panel_names_invalid_fields(bob: Browser) -> None:
    assert marked(bob, name="Not Valid", more_keys="") == [], "what is not typed yet is not invalid"
    assert marked(bob, count="0", lease="soon") == ["count", "lease"]
    assert marked(bob, size="own", cpu="-1", memory="lots", disk="1") == ["memory", "disk", "cpu"]
    assert marked(bob, size="medium", cpu="-1", memory="lots") == [], "a fixed size ignores the custom values"
    text = bob.post("/new/cost", {**FORM, "net_in": "<b>5</b>"}).text
    assert "Ingress rate:" in text and "<b>5</b>" not in text
    assert "use the default" in text and "1 sliver" in text


# a lost session

BIG = {**FORM, "name": "biggest", "count": "3", "user_data": "#cloud-config\nhostname: x", "keys": ["K1", "K2"]}


def lost(tenants: Tenants) -> Browser:
    """A browser whose session has ended."""
    with tenants.store.write() as c:
        c.execute(t.sessions.delete())
    return Browser(tenants)


def sign_in(browser: Browser, target: str) -> str:
    """Sign in from the page to which a request was redirected; where that leads."""
    (next_,) = parse_qs(urlsplit(target).query)["next"]
    answer = browser.post("/sign-in", {"user": "bob", "password": PASSWORD, "next": next_})
    return str(answer.headers["Location"])


def test_a_lost_session_keeps_the_form(tenants: Tenants) -> None:
    """After the sign-in, the form is shown with what was typed; nothing is sent by itself."""
    person = lost(tenants)
    answer = person.post("/new?project=lab", BIG, headers=HERE)
    assert answer.status_code == 303 and answer.headers["Location"].startswith("/sign-in?next=")
    place = sign_in(person, answer.headers["Location"])
    page = person.get(place).text
    assert place.startswith("/new?project=lab&kept=") and "the form was not sent" in page
    for words in ('name="name" type="text" value="biggest"', 'name="count" type="number" value="3"', "hostname: x"):
        assert words in page
    assert "biggest" not in names(tenants)
    assert person.post("/new", {**FORM, "name": "biggest"}).status_code == 303, "it can be sent again"


def test_a_form_within_a_page_returns_to_that_page(tenants: Tenants) -> None:
    person = lost(tenants)
    answer = person.post("/slices/exp/resize?project=lab", {"disk": "9G", "id": "x"}, headers=HERE)
    place = sign_in(person, answer.headers["Location"])
    page = person.get(place).text
    assert place.startswith("/slices/exp?project=lab&kept=") and 'value="9G"' in page
    assert '<details class="more" open>' in page, "the field can be seen"


def test_signing_in_elsewhere_meanwhile_keeps_the_form(tenants: Tenants, bob: Browser) -> None:
    """The token of the page is that of an earlier session."""
    answer = bob.post("/new", {**BIG, "csrf_token": "earlier"}, proof=False, headers=HERE)
    assert answer.status_code == 303 and 'value="biggest"' in bob.get(answer.headers["Location"]).text
    assert "biggest" not in names(tenants)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {**HERE, "Sec-Fetch-Site": "cross-site"},
        {**HERE, "Sec-Fetch-Site": "none"},
    ],
)
def test_no_other_site_fills_a_form_in(tenants: Tenants, bob: Browser, headers: dict[str, str]) -> None:
    assert bob.post("/new", {**BIG, "csrf_token": "x"}, proof=False, headers=headers).status_code == 400
    person = lost(tenants)
    assert person.post("/new", BIG, headers=headers).headers["Location"] == "/sign-in"


def test_what_is_not_kept(tenants: Tenants) -> None:
    """Passwords, files, and forms that are too large."""
    person = lost(tenants)
    fields = {"old": PASSWORD, "new": "another long one", "repeated": "another long one", "other": "x"}
    place = sign_in(person, person.post("/account/password", fields, headers=HERE).headers["Location"])
    assert "another long one" not in person.get(place).text and PASSWORD not in person.get(place).text
    stranger = Browser(tenants)
    large = {**BIG, "user_data": "x" * (101 << 10)}
    assert stranger.post("/new", large, headers=HERE).headers["Location"] == "/sign-in"
    file = {"name": "new", "format": "raw", "file": b"disk"}
    assert stranger.post("/new-image", file, headers=HERE).headers["Location"] == "/sign-in"


def test_a_kept_form_is_for_signed_in_users_and_for_a_time(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot fill the memory: the newest forms of its address are kept."""
    stranger = Browser(tenants)
    target = html.unescape(stranger.post("/new", BIG, headers=HERE).headers["Location"])
    (key,) = parse_qs(urlsplit(parse_qs(urlsplit(target).query)["next"][0]).query)["kept"]
    assert "biggest" not in stranger.get(f"/sign-in?kept={key}").text
    bob = Browser(tenants, "bob")
    assert 'value="biggest"' in bob.get(f"/new?kept={key}").text
    assert 'value="biggest"' not in bob.get("/new?kept=made-up").text
    for _ in range(3):
        stranger.post("/new", BIG, headers=HERE)
    assert 'value="biggest"' not in bob.get(f"/new?kept={key}").text
    monkeypatch.setattr(kept_form, "_PATIENCE", 0.0)
    target = stranger.post("/new", BIG, headers=HERE).headers["Location"]
    assert 'value="biggest"' not in bob.get(parse_qs(urlsplit(target).query)["next"][0]).text


def test_the_panel_does_not_discard_the_form(tenants: Tenants) -> None:
    """The page of the form asks for the cost while the user types; only parts of other pages redirect."""
    person = lost(tenants)
    answer = person.post("/new/cost", FORM, headers={**HERE, "HX-Request": "true"})
    assert answer.status_code == 200 and "HX-Redirect" not in answer.headers and "session has ended" in answer.text
    assert person.part("/slices").headers["HX-Redirect"] == "/sign-in", "the control"


# the URLs of forms


def test_a_form_url_in_the_address_bar_shows_a_page(tenants: Tenants) -> None:
    """For every form: no 405, and after redirects a page."""
    root = Browser(tenants, "root")
    values = {"name": "exp", "index": "0", "what": "console", "user": "bob", "id": tenants.found["request"]}
    values |= {"snapshot": "before", "secret": "nobodys", "file": "x"}
    rules = [one for one in tenants.app.url_map.iter_rules() if not one.rule.startswith(("/api/", "/static/"))]
    readable = {one.rule for one in rules if "GET" in (one.methods or ())}
    forms = [one.rule for one in rules if "POST" in (one.methods or ()) and one.rule not in readable]
    assert len(forms) > 30
    for rule in forms:
        path = re.sub(r"<(?:[a-z]+(?:\([^)]*\))?:)?(\w+)>", lambda found: values[found[1]], rule)
        answer = root.get(f"{path}?project=lab")
        assert answer.status_code == 303, path
        assert root.get(answer.headers["Location"]).status_code in (200, 303, 404), path
    for form in ("resize", "renew"):
        place = root.get(f"/slices/exp/{form}?project=lab").headers["Location"]
        assert place == "/slices/exp?project=lab&section=settings#settings", "the section that has the form"
    assert root.get("/slices/exp/renew").headers["Location"] == "/slices/exp?section=settings#settings"
    assert root.get("/new/cost").headers["Location"] == "/new"
    for path in ("//evil.example/slices/exp/act", "/\\evil.example/act", "/slices/%2f%2fevil.example/act"):
        place = root.get(path).headers.get("Location", "/")
        assert urlsplit(place).netloc in ("", "localhost"), place
    assert root.client.put("/slices/exp/act").status_code == 405
    assert root.get("/api/v1/slices/exp/act").status_code in (404, 405)

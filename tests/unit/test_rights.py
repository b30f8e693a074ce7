"""Every route and verb for every role: the table below must have a row for each route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bare_service import request
from page_cases import PAGES
from published import packed
from tenants import AUDIT, LAB_IMAGE, LAB_SHA, OTHER_KEY, PASSWORD, Tenants

from slicemgr.policy.access import Principal
from slicemgr.store import tables as t
from slicemgr.web import create_app

API = "/api/v1"
ACTORS = ("carol", "dave", "bob", "alice", "root", "reader")  # another project's, member, owner, pi, admin, read-only
STRANGERS = (None, "revoked", "expired", "disabled")


class Case(NamedTuple):
    """path: with objects of bob. expected: the status for each of ACTORS; OPEN: for all, also without a token."""

    path: str
    expected: tuple[int, ...]
    json: Any = None
    data: bytes | None = None


OPEN = (200,)
ALL = (200,) * 6
WRITERS = (201,) * 5 + (403,)
MEMBERS = (404, 200, 200, 200, 200, 200)
OWNERS = (404, 403, 202, 202, 202, 403)
ADMINS = (403, 403, 403, 403, 202, 403)
HIS = (404, 404, 200, 404, 200, 200)  # his own, and the admins'
ANSWERED = (404, 404, 200, 404, 404, 403)  # only by the invited user
HIS_TO_CHANGE = (404, 404, 200, 404, 200, 403)
SLICE = f"{API}/slices/exp"
SNAPSHOTS = f"{SLICE}/snapshots"
CASES = {
    "GET /healthz": Case("/healthz", OPEN),
    f"GET {API}/openapi.json": Case(f"{API}/openapi.json", OPEN),
    f"GET {API}/": Case(f"{API}/", OPEN),
    f"POST {API}/login": Case(f"{API}/login", (201,), {"user": "bob", "password": PASSWORD}),
    f"POST {API}/invitation": Case(f"{API}/invitation", (404,), {"token": "x", "password": PASSWORD}),
    f"GET {API}/slices": Case(f"{API}/slices", ALL),
    f"POST {API}/slices": Case(f"{API}/slices", (404, 202, 202, 202, 202, 403), request("new", project="lab")),
    f"GET {API}/slices/<name>": Case(f"{SLICE}?project=lab", MEMBERS),
    f"DELETE {API}/slices/<name>": Case(f"{SLICE}?project=lab", OWNERS),
    f"POST {API}/slices/<name>/renew": Case(
        f"{SLICE}/renew?project=lab", (404, 403, 200, 200, 200, 403), {"lease": "8d"}
    ),
    f"POST {API}/slices/<name>/resize": Case(f"{SLICE}/resize?project=lab", OWNERS, {"disk": "8G"}),
    f"POST {API}/slices/<name>/console": Case(
        f"{SLICE}/console?project=lab", (404, 403, 200, 200, 200, 403), {"sliver": 0}
    ),
    f"GET {API}/console": Case(f"{API}/console", (400,)),
    f"GET {API}/node-dials": Case(f"{API}/node-dials", (400,)),
    f"POST {API}/slices/<name>/<action>": Case(f"{SLICE}/stop?project=lab", OWNERS),
    f"GET {API}/slices/<name>/snapshots": Case(f"{SNAPSHOTS}?project=lab", MEMBERS),
    f"POST {API}/slices/<name>/snapshots": Case(f"{SNAPSHOTS}?project=lab", OWNERS, {"name": "after"}),
    f"GET {API}/slices/<name>/snapshots/<snapshot>": Case(f"{SNAPSHOTS}/before?project=lab", MEMBERS),
    f"DELETE {API}/slices/<name>/snapshots/<snapshot>": Case(f"{SNAPSHOTS}/before?project=lab", OWNERS),
    f"POST {API}/slices/<name>/snapshots/<snapshot>/restore": Case(f"{SNAPSHOTS}/before/restore?project=lab", OWNERS),
    f"POST {API}/slices/<name>/snapshots/<snapshot>/clone": Case(
        f"{SNAPSHOTS}/before/clone?project=lab", OWNERS, {"name": "twin"}
    ),
    f"GET {API}/images": Case(f"{API}/images", ALL),
    f"POST {API}/images": Case(
        f"{API}/images?name=new&format=raw&project=lab", (404, 202, 202, 202, 202, 403), data=b"disk"
    ),
    f"GET {API}/images/<name>": Case(f"{API}/images/{LAB_IMAGE}", MEMBERS),
    f"DELETE {API}/images/<name>": Case(f"{API}/images/{LAB_IMAGE}", (404, 403, 403, 202, 202, 403)),
    f"POST {API}/images/<name>/publish": Case(f"{API}/images/{LAB_SHA}/publish", (404, 403, 403, 403, 200, 403)),
    f"GET {API}/nodes": Case(f"{API}/nodes", ALL),
    f"GET {API}/nodes/<name>": Case(f"{API}/nodes/node1", ALL),
    f"GET {API}/authority": Case(f"{API}/authority", (409,)),  # there is none
    f"GET {API}/node-images/<sha256>": Case(f"{API}/node-images/{LAB_SHA}", (401,)),
    f"GET {API}/images/<name>/kernel-config": Case(f"{API}/images/{LAB_IMAGE}/kernel-config", MEMBERS),
    f"GET {API}/images/<name>/nodes": Case(f"{API}/images/{LAB_IMAGE}/nodes", MEMBERS),
    f"POST {API}/images/<name>/push": Case(
        f"{API}/images/{LAB_IMAGE}/push", (403, 403, 403, 403, 202, 403), {"node": "node1"}
    ),
    f"GET {API}/node-images/<sha256>/blocks": Case(f"{API}/node-images/{LAB_SHA}/blocks", (401,)),
    f"GET {API}/node-images/<sha256>/base": Case(f"{API}/node-images/{LAB_SHA}/base", (401,)),
    f"PUT {API}/node-images/<sha256>/base": Case(f"{API}/node-images/{LAB_SHA}/base?version=1", (401,), data=b"x"),
    f"GET {API}/node-images/<sha256>/base/blocks": Case(f"{API}/node-images/{LAB_SHA}/base/blocks", (401,)),
    f"POST {API}/join": Case(f"{API}/join", (422,), {"token": "x", "request": "x"}),
    f"POST {API}/join/withdraw": Case(f"{API}/join/withdraw", (403,), {"token": "x", "request": "x"}),
    f"POST {API}/renew": Case(f"{API}/renew", (422,), {"identity": "x", "request": "x"}),
    f"POST {API}/nodes": Case(f"{API}/nodes", (403, 403, 403, 403, 409, 403), {"name": "node7"}),
    f"DELETE {API}/nodes/<name>": Case(f"{API}/nodes/node1", (403, 403, 403, 403, 409, 403)),
    f"POST {API}/nodes/<name>/drain": Case(f"{API}/nodes/node1/drain", (403, 403, 403, 403, 200, 403)),
    f"POST {API}/nodes/<name>/undrain": Case(f"{API}/nodes/node1/undrain", (403, 403, 403, 403, 200, 403)),
    f"POST {API}/nodes/<name>/resync": Case(f"{API}/nodes/node1/resync", (403, 403, 403, 403, 409, 403)),
    f"POST {API}/nodes/<name>/evacuate": Case(f"{API}/nodes/node1/evacuate", (403, 403, 403, 403, 409, 403), {}),
    f"POST {API}/nodes/<name>/rename": Case(
        f"{API}/nodes/node1/rename", (403, 403, 403, 403, 409, 403), {"name": "node7"}
    ),
    f"POST {API}/nodes/<name>/doctor": Case(f"{API}/nodes/node1/doctor", ADMINS),
    f"POST {API}/nodes/<name>/gc": Case(f"{API}/nodes/node1/gc", ADMINS, {"apply": True}),
    f"POST {API}/nodes/<name>/baseline": Case(f"{API}/nodes/node1/baseline", ADMINS, {"image": LAB_SHA}),
    f"POST {API}/nodes/<name>/io": Case(
        f"{API}/nodes/node1/io", ADMINS, {"root": "overlay", "image": "ab" * 32, "what": "files", "size": 10}
    ),
    f"POST {API}/nodes/<name>/sysbench": Case(f"{API}/nodes/node1/sysbench", ADMINS, {"test": "cpu"}),
    f"POST {API}/nodes/<name>/memory": Case(f"{API}/nodes/node1/memory", ADMINS, {"bytes": 0}),
    f"POST {API}/nodes/<name>/tables": Case(f"{API}/nodes/node1/tables", ADMINS),
    f"GET {API}/nodes/<name>/audit": Case(f"{API}/nodes/node1/audit", (403, 403, 403, 403, 200, 403)),
    f"PUT {API}/nodes/<name>/audit": Case(f"{API}/nodes/node1/audit", (403, 403, 403, 403, 200, 403), AUDIT),
    f"GET {API}/slices/<name>/samples": Case(f"{SLICE}/samples?project=lab", MEMBERS),
    f"GET {API}/nodes/<name>/samples": Case(f"{API}/nodes/node1/samples", ALL),
    f"GET {API}/top": Case(f"{API}/top", ALL),
    "GET /metrics": Case("/metrics", (403, 403, 403, 403, 200, 403)),
    f"GET {API}/accounts": Case(f"{API}/accounts?project=lab", MEMBERS),
    f"GET {API}/operations": Case(f"{API}/operations", ALL),
    f"GET {API}/operations/<id>": Case(f"{API}/operations/OPERATION?wait=0.01", MEMBERS),
    f"GET {API}/operations/<id>/events": Case(f"{API}/operations/OPERATION/events", MEMBERS),
    f"GET {API}/events": Case(f"{API}/events", ALL),
    f"GET {API}/me": Case(f"{API}/me", ALL),
    f"POST {API}/me/password": Case(
        f"{API}/me/password", (200,) * 5 + (403,), {"old": PASSWORD, "new": "another long password"}
    ),
    f"GET {API}/users": Case(f"{API}/users", ALL),
    f"POST {API}/users": Case(f"{API}/users", (403, 403, 403, 403, 201, 403), {"name": "grace"}),
    f"GET {API}/users/<name>": Case(f"{API}/users/bob", MEMBERS),
    f"PATCH {API}/users/<name>": Case(f"{API}/users/bob", (404, 403, 200, 403, 200, 403), {"full_name": "Bob"}),
    f"DELETE {API}/users/<name>": Case(f"{API}/users/erin", (404, 404, 404, 404, 200, 404)),
    f"POST {API}/users/<name>/invitation": Case(f"{API}/users/bob/invitation", (404, 403, 403, 403, 201, 403)),
    f"GET {API}/projects": Case(f"{API}/projects", ALL),
    f"POST {API}/projects": Case(f"{API}/projects", (403, 403, 403, 403, 201, 403), {"name": "new"}),
    f"GET {API}/projects/<name>": Case(f"{API}/projects/lab", MEMBERS),
    f"PATCH {API}/projects/<name>": Case(f"{API}/projects/lab", (404, 403, 403, 200, 200, 403), {"description": "x"}),
    f"DELETE {API}/projects/<name>": Case(f"{API}/projects/hollow", (404, 403, 403, 403, 200, 403)),
    f"PUT {API}/projects/<name>/members/<user>": Case(
        f"{API}/projects/lab/members/erin", (404, 403, 403, 200, 200, 403), {"role": "member"}
    ),
    f"DELETE {API}/projects/<name>/members/<user>": Case(
        f"{API}/projects/lab/members/dave", (404, 200, 403, 200, 200, 403)
    ),
    f"GET {API}/projects/<name>/invitations": Case(f"{API}/projects/lab/invitations", (404, 403, 403, 200, 200, 403)),
    f"POST {API}/projects/<name>/invitations": Case(
        f"{API}/projects/lab/invitations", (404, 403, 403, 201, 201, 403), {"invitee": "erin"}
    ),
    f"DELETE {API}/projects/<name>/invitations/<id>": Case(
        f"{API}/projects/lab/invitations/INVITATION", (404, 403, 403, 200, 200, 403)
    ),
    f"GET {API}/me/invitations": Case(f"{API}/me/invitations", ALL),
    f"POST {API}/me/invitations/<id>/accept": Case(f"{API}/me/invitations/INVITED/accept", ANSWERED),
    f"POST {API}/me/invitations/<id>/decline": Case(f"{API}/me/invitations/INVITED/decline", ANSWERED),
    f"GET {API}/projects/<name>/leases": Case(f"{API}/projects/lab/leases", MEMBERS),
    f"PATCH {API}/projects/<name>/leases": Case(
        f"{API}/projects/lab/leases", (404, 403, 403, 200, 200, 403), {"default": "2d"}
    ),
    f"GET {API}/clock": Case(f"{API}/clock", ALL),
    f"POST {API}/clock/confirm": Case(f"{API}/clock/confirm", (403, 403, 403, 403, 200, 403)),
    f"GET {API}/requests": Case(f"{API}/requests", ALL),
    f"GET {API}/requests/<id>": Case(f"{API}/requests/REQUEST", (404, 404, 200, 200, 200, 200)),
    f"POST {API}/requests/<id>/grant": Case(f"{API}/requests/REQUEST/grant", (404, 404, 403, 202, 202, 403)),
    f"POST {API}/requests/<id>/decline": Case(
        f"{API}/requests/REQUEST/decline", (404, 404, 403, 200, 200, 403), {"reason": "no"}
    ),
    f"POST {API}/requests/<id>/withdraw": Case(f"{API}/requests/REQUEST/withdraw", (404, 404, 200, 403, 403, 403)),
    f"GET {API}/keys": Case(f"{API}/keys?user=bob", HIS),
    f"POST {API}/keys": Case(f"{API}/keys", WRITERS, {"key": OTHER_KEY}),
    f"DELETE {API}/keys/<id>": Case(f"{API}/keys/KEY?user=bob", HIS_TO_CHANGE),
    f"GET {API}/tokens": Case(f"{API}/tokens?user=bob", HIS),
    f"POST {API}/tokens": Case(f"{API}/tokens", WRITERS, {"label": "script"}),
    f"DELETE {API}/tokens/<id>": Case(f"{API}/tokens/TOKEN", HIS_TO_CHANGE),
    f"GET {API}/sessions": Case(f"{API}/sessions?user=bob", HIS),
    f"DELETE {API}/sessions/<id>": Case(f"{API}/sessions/SESSION", HIS_TO_CHANGE),
    f"GET {API}/experiments": Case(f"{API}/experiments", ALL),
    f"POST {API}/experiments": Case(f"{API}/experiments?name=x", (403, 403, 403, 403, 201, 403), data=packed()),
    f"GET {API}/experiments/<id>": Case(f"{API}/experiments/EXPERIMENT", ALL),
    f"PATCH {API}/experiments/<id>": Case(
        f"{API}/experiments/EXPERIMENT", (403, 403, 403, 403, 200, 403), {"public": False}
    ),
    f"DELETE {API}/experiments/<id>": Case(f"{API}/experiments/EXPERIMENT", (403, 403, 403, 403, 200, 403)),
    f"GET {API}/experiments/<id>/files/<file>": Case(f"{API}/experiments/EXPERIMENT/files/report.html", ALL),
}
_UNWATCHED = ("tokens", "events")  # a last use is noted, and a failure to sign in


def routes(tenants: Tenants) -> Iterator[str]:
    """Every rule and verb that the application answers; OPTIONS is Flask's own."""
    for rule in tenants.app.url_map.iter_rules():
        for method in rule.methods or ():
            if method != "OPTIONS":
                yield f"{method} {rule.rule}"


def test_every_route_and_verb_has_a_row(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        found = set(routes(tenants))
    heads = {route for route in found if route.startswith("HEAD ")}
    assert found - heads == set(CASES) | set(PAGES)
    assert {route.replace("HEAD", "GET") for route in heads} <= set(CASES) | set(PAGES), "HEAD goes where GET goes"


def send(tenants: Tenants, who: str | None, method: str, case: Case) -> int:
    path = re.sub("[A-Z]{3,}", lambda word: tenants.found[word[0].lower()], case.path)
    answer = tenants.client(who).open(path, method=method, json=case.json, data=case.data)
    if answer.status_code >= 400 and method != "HEAD":
        assert answer.mimetype == "application/problem+json", answer.text
        assert "lab" not in answer.get_json(force=True).get("hint", "") or who != "carol", (
            "a stranger is told of no project"
        )
    answer.close()
    return answer.status_code


def methods(route: str) -> tuple[str, ...]:
    verb = route.split()[0]
    return ("GET", "HEAD") if verb == "GET" else (verb,)


def watched(tenants: Tenants) -> dict[str, list[Any]]:
    return {name: rows for name, rows in tenants.content().items() if name not in _UNWATCHED}


@pytest.mark.parametrize("route", CASES)
def test_who_may(route: str, tenants: Tenants) -> None:
    """The status for every role; refused requests change nothing."""
    case, before = CASES[route], watched(tenants)
    seen: dict[str | None, int] = {}
    for who in (*ACTORS, *STRANGERS):
        for method in methods(route):
            seen[who] = send(tenants, who, method, case)
            if seen[who] >= 400 or method in ("GET", "HEAD"):
                assert watched(tenants) == before, f"{who} changed something"
            else:
                tenants.restore()
    everybody = (*ACTORS, *STRANGERS)
    if len(case.expected) == 1:
        wanted = dict.fromkeys(everybody, case.expected[0])
    else:
        wanted = dict(zip(everybody, (*case.expected, *(401,) * len(STRANGERS)), strict=True))
    assert seen == wanted


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("PATCH", "/users/bob", {"admin": True}),
        ("PATCH", "/users/bob", {"enabled": False}),
        ("PATCH", "/projects/lab", {"ceiling": {"slices": 99}}),
        ("PATCH", "/projects/lab", {"quota": {"slices": 9}, "ceiling": {"slices": 99}}),
        ("PATCH", "/projects/lab", {"ceiling": {"slices": 99}}),
        ("PUT", "/projects/lab/members/bob", {"role": "pi"}),
        ("PATCH", "/projects/lab/leases", {"exempt": True}),
        ("PATCH", "/projects/lab/leases", {"window": "1d"}),
        ("POST", "/images?name=new&format=raw", None),
    ],
)
def test_what_a_pi_may_not(method: str, path: str, json: Any, tenants: Tenants) -> None:
    """Fields that need more rights than the route. An image of a user with one project belongs to it, not to all."""
    with tenants.store.write() as c:
        c.execute(t.users.update().values(default_project=""))
    statuses = {
        who: send(tenants, who, method, Case(API + path, (), json, None if json else b"disk"))
        for who in ("bob", "alice", "root")
    }
    if "images" in path:
        assert statuses == {"bob": 422, "alice": 422, "root": 202}, "which of several projects must be said"
    else:
        assert statuses == {"bob": 403, "alice": 403, "root": 200}


@pytest.mark.parametrize("path", ["slices", "images", "operations", "events", "users", "projects", "requests"])
def test_a_list_has_nothing_of_others(path: str, tenants: Tenants) -> None:
    """Nothing that names lab, its people or its things reaches carol; bob and the admin see them."""
    texts = {who: tenants.client(who).get(f"{API}/{path}").text for who in ("carol", "bob", "root")}
    words = re.compile(r'"(lab|lab-image|exp|large|bob|alice|dave|hollow)"|192\.0\.2\.7')
    assert not words.search(texts["carol"]), texts["carol"]
    assert words.search(texts["bob"]) and words.search(texts["root"])


def test_names_of_others_are_as_if_they_were_not(tenants: Tenants) -> None:
    """The same error for a missing object and for one that the user may not see."""
    client = tenants.client("carol")
    for known, unknown in (
        ("/slices/exp?project=lab", "/slices/exq?project=lac"),
        ("/slices/exp", "/slices/exq"),
        (f"/images/{LAB_IMAGE}", "/images/lab-imagf"),
        ("/projects/lab", "/projects/lac"),
        ("/users/bob", "/users/boc"),
        (f"/requests/{tenants.found['request']}", "/requests/" + "0" * 16),
        (f"/operations/{tenants.found['operation']}", "/operations/" + "0" * 16),
    ):
        first, second = client.get(API + known), client.get(API + unknown)
        assert (first.status_code, second.status_code) == (404, 404)
        shape = [re.sub(r"'[^']*'", "''", one.text) for one in (first, second)]
        assert shape[0] == shape[1]


def test_without_the_rights_a_stranger_would_see_and_do(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without policy.access, carol would get what the table forbids."""
    monkeypatch.setattr(Principal, "sees", lambda self, project: True)
    monkeypatch.setattr(Principal, "leads", lambda self, project: True)
    for route in (f"GET {API}/slices/<name>", f"DELETE {API}/slices/<name>"):
        assert send(tenants, "carol", route.split()[0], CASES[route]) in (200, 202)


def test_a_route_without_a_row_is_noticed(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        tenants.app = create_app(tenants.config, tenants.store)
        tenants.app.add_url_rule("/forgotten", view_func=lambda: "", methods=["POST"])
        assert set(routes(tenants)) - set(CASES) >= {"POST /forgotten"}

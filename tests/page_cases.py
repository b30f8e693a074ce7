"""Every page and form with the expected status for each role; a new page needs a row here. See `test_rights_pages`."""

from __future__ import annotations

from typing import Any, NamedTuple

from bare_service import KEY
from tenants import LAB_IMAGE, LAB_SHA, OTHER_KEY, PASSWORD

ACTORS = ("carol", "dave", "bob", "alice", "root")  # member of another project, member, owner, PI, admin


class PageCase(NamedTuple):
    """path: of an object of bob; words in capitals are keys of the tenants' `found`. expected: a status per ACTOR.

    A single status applies to all of them, and to users who are not signed in.
    """

    path: str
    expected: tuple[int, ...]
    form: dict[str, Any] | None = None


ALL = (200,) * 5
SEEN = (404, 200, 200, 200, 200)
CHANGED = (404, 403, 303, 303, 303)
SURE = {"confirmed": "yes"}  # the answer to a question
SLICE, IN = "/slices/exp", "?project=lab"
OWNERS = (404, 403, 200, 200, 200)
CONSOLE = "/slices/<name>/<int:index>/<any(console, screen):what>"
EXPERIMENT = "/experiments/<id>/<any(show, hide, delete):what>"
SNAPSHOT = "/slices/<name>/snapshots/<snapshot>/<any(restore, delete):what>"
PAGES = {
    "GET /": PageCase("/", (303,)),
    "GET /sign-in": PageCase("/sign-in", (303,) * 5),
    "POST /sign-in": PageCase("/sign-in", (401,), {"user": "bob", "password": "not this one"}),
    "POST /sign-out": PageCase("/sign-out", (303,)),
    "GET /invitation/<secret>": PageCase("/invitation/nobodys", (404,)),
    "POST /invitation/<secret>": PageCase("/invitation/nobodys", (404,), {"password": "x", "repeated": "x"}),
    "GET /sign-in-link/<secret>": PageCase("/sign-in-link/nobodys", (404,)),
    "POST /sign-in-link/<secret>": PageCase("/sign-in-link/nobodys", (404,), {}),
    "GET /sign-in/openid": PageCase("/sign-in/openid", (404,)),  # not configured here
    "GET /sign-in/openid/back": PageCase("/sign-in/openid/back?state=x&code=x", (404,)),
    "POST /invitation/<secret>/openid": PageCase("/invitation/nobodys/openid", (404,), {}),
    "GET /static/<version>/<path:name>": PageCase("/static/x/app.css", (200,)),
    "GET /docs/": PageCase("/docs/", (200,)),
    "GET /docs/<path:name>": PageCase("/docs/page/", (200,)),
    "GET /client/<name>": PageCase("/client/slicemgr-0.0-py3-none-any.whl", (404,)),  # of another version
    "GET /slices": PageCase("/slices", ALL),
    "GET /slices/requests/<id>/withdraw": PageCase("/slices/requests/REQUEST/withdraw", (303,) * 5),
    "POST /slices/requests/<id>/withdraw": PageCase("/slices/requests/REQUEST/withdraw", (404, 404, 303, 403, 403), {}),
    "GET /new": PageCase("/new", ALL),
    "POST /new/cost": PageCase("/new/cost", (404, 200, 200, 200, 200), {"project": "lab"}),
    "POST /new/preview": PageCase("/new/preview", ALL, {"project": "lab"}),  # a refusal is part of the page
    "POST /new": PageCase(
        "/new",
        (404, 303, 303, 303, 303),
        {"project": "lab", "name": "new", "type": "lxc", "image": "debian-12", "size": "small", "more_keys": KEY},
    ),
    "GET /slices/<name>": PageCase(f"{SLICE}{IN}", SEEN),
    "POST /slices/<name>/act": PageCase(f"{SLICE}/act{IN}", CHANGED, {"action": "stop"}),
    "POST /slices/<name>/renew": PageCase(f"{SLICE}/renew{IN}", CHANGED, {"lease": "8d"}),
    "GET /slices/<name>/delete": PageCase(f"{SLICE}/delete{IN}", SEEN),
    "POST /slices/<name>/delete": PageCase(f"{SLICE}/delete{IN}", CHANGED, {"typed": "exp"}),
    "POST /slices/<name>/resize": PageCase(f"{SLICE}/resize{IN}", CHANGED, {"disk": "8G"}),
    "GET /slices/<name>/samples": PageCase(f"{SLICE}/samples{IN}", SEEN),
    "GET /slices/<name>/snapshots": PageCase(f"{SLICE}/snapshots{IN}", (404, 303, 303, 303, 303)),
    "POST /slices/<name>/snapshots": PageCase(f"{SLICE}/snapshots{IN}", CHANGED, {"snapshot": "later"}),
    f"GET {SNAPSHOT}": PageCase(f"{SLICE}/snapshots/before/restore{IN}", OWNERS),
    f"POST {SNAPSHOT}": PageCase(f"{SLICE}/snapshots/before/restore{IN}", CHANGED, {}),
    "GET /slices/<name>/snapshots/<snapshot>/clone": PageCase(f"{SLICE}/snapshots/before/clone{IN}", OWNERS),
    "POST /slices/<name>/snapshots/<snapshot>/clone": PageCase(
        f"{SLICE}/snapshots/before/clone{IN}", CHANGED, {"name": "again"}
    ),
    "GET /operations/<id>": PageCase("/operations/OPERATION", SEEN),
    f"GET {CONSOLE}": PageCase("/slices/exp/0/console?project=lab", OWNERS),
    f"POST {CONSOLE}/ticket": PageCase("/slices/exp/0/console/ticket?project=lab", OWNERS),
}

MEMBERS = (404, 200, 200, 200, 200)
PIS = (404, 403, 403, 303, 303)
ADMINS = (403, 403, 403, 403, 200)
ADMINS_DO = (403, 403, 403, 403, 303)
HIS = (404, 404, 303, 404, 303)  # only for the user himself and admins
THE_ADMINS = (404, 403, 403, 403, 303)
PAGES |= {
    "GET /projects": PageCase("/projects", ALL),
    "GET /projects/<name>": PageCase("/projects/lab", MEMBERS),
    "POST /projects/<name>/members": PageCase("/projects/lab/members", PIS, {"user": "erin", "role": "member"}),
    "POST /projects/<name>/members/<user>/role": PageCase(
        "/projects/lab/members/dave/role", (404, 403, 403, 403, 303), {"role": "pi"}
    ),
    "POST /projects/<name>/members/<user>/remove": PageCase(
        "/projects/lab/members/dave/remove", (404, 303, 403, 303, 303), SURE
    ),
    "POST /projects/<name>/invitations/<id>/withdraw": PageCase(
        "/projects/lab/invitations/INVITATION/withdraw", PIS, {}
    ),
    "POST /invitations/<id>/accept": PageCase("/invitations/INVITED/accept", (404, 404, 303, 404, 404), {}),
    "POST /invitations/<id>/decline": PageCase("/invitations/INVITED/decline", (404, 404, 303, 404, 404), {}),
    "GET /projects/<name>/settings": PageCase("/projects/lab/settings", (404, 403, 403, 200, 200)),
    "POST /projects/<name>/settings": PageCase("/projects/lab/settings", PIS, {"description": "x"}),
    "GET /projects/<name>/leases": PageCase("/projects/lab/leases", (404, 403, 403, 200, 200)),
    "POST /projects/<name>/leases": PageCase("/projects/lab/leases", PIS, {"default": "3d"}),
    "POST /projects/<name>/delete": PageCase("/projects/hollow/delete", THE_ADMINS, {"typed": "hollow"}),
    "GET /quotas": PageCase("/quotas", ADMINS),
    "GET /new-project": PageCase("/new-project", ADMINS),
    "POST /new-project": PageCase("/new-project", ADMINS_DO, {"name": "new"}),
    "GET /requests": PageCase("/requests", ALL),
    "GET /requests/waiting": PageCase("/requests/waiting", ALL),
    "GET /requests/<id>": PageCase("/requests/REQUEST", (404, 404, 200, 200, 200)),
    "POST /requests/<id>/grant": PageCase("/requests/REQUEST/grant", (404, 404, 403, 303, 303), {}),
    "POST /requests/<id>/decline": PageCase("/requests/REQUEST/decline", (404, 404, 403, 303, 303), {"no": "no"}),
    "POST /requests/<id>/withdraw": PageCase("/requests/REQUEST/withdraw", (404, 404, 303, 403, 403), {}),
    "GET /account": PageCase("/account", ALL),
    "POST /account/keys": PageCase("/account/keys", (303,) * 5, {"key": OTHER_KEY}),
    "POST /account/keys/<id>/remove": PageCase("/account/keys/KEY/remove", (404, 404, 303, 404, 404), SURE),
    "POST /account/tokens": PageCase("/account/tokens", (303,) * 5, {"label": "x", "scope": "read", "expires": "1d"}),
    "POST /account/tokens/<id>/revoke": PageCase("/account/tokens/TOKEN/revoke", HIS, {}),
    "POST /account/sessions/<id>/revoke": PageCase("/account/sessions/SESSION/revoke", HIS, {}),
    "POST /account/sessions/revoke-others": PageCase("/account/sessions/revoke-others", (303,) * 5, {}),
    "POST /account/password": PageCase(
        "/account/password", (303,) * 5, {"old": PASSWORD, "new": "another long one", "repeated": "another long one"}
    ),
    "POST /account/openid": PageCase("/account/openid", (404,) * 5, {}),
    "POST /account/openid/unlink": PageCase("/account/openid/unlink", (404,) * 5, {}),
    "POST /account/person": PageCase("/account/person", (303,) * 5, {"full_name": "Somebody"}),
    "GET /people": PageCase("/people", ADMINS),
    "POST /people": PageCase("/people", ADMINS_DO, {"name": "grace"}),
    "GET /people/<name>": PageCase("/people/bob", ADMINS),
    "POST /people/<name>/describe": PageCase("/people/bob/describe", ADMINS_DO, {"full_name": "Bob"}),
    "POST /people/<name>/account/<what>": PageCase("/people/bob/account/disable", ADMINS_DO, {}),
    "POST /people/<name>/delete": PageCase("/people/erin/delete", ADMINS_DO, SURE),
    "POST /people/<name>/invitation": PageCase("/people/bob/invitation", ADMINS_DO, {}),
    "POST /people/<name>/keys/<id>/remove": PageCase("/people/bob/keys/KEY/remove", ADMINS_DO, SURE),
    "POST /people/<name>/tokens/<id>/revoke": PageCase("/people/bob/tokens/TOKEN/revoke", ADMINS_DO, {}),
    "POST /people/<name>/sessions/<id>/revoke": PageCase("/people/bob/sessions/SESSION/revoke", ADMINS_DO, {}),
    "GET /images": PageCase("/images", ALL),
    "GET /images/<name>": PageCase(f"/images/{LAB_IMAGE}", MEMBERS),
    "GET /images/<name>/kernel-config": PageCase(f"/images/{LAB_IMAGE}/kernel-config", MEMBERS),
    "GET /new-image": PageCase("/new-image", ALL),
    "POST /new-image": PageCase(
        "/new-image", (404, 303, 303, 303, 303), {"name": "new", "format": "raw", "project": "lab", "file": b"disk"}
    ),
    "POST /images/<name>/delete": PageCase(f"/images/{LAB_SHA}/delete", PIS, {"typed": LAB_IMAGE}),
    "POST /images/<name>/publish": PageCase(f"/images/{LAB_SHA}/publish", THE_ADMINS, {}),
    "GET /nodes": PageCase("/nodes", (200, 200, 200, 200, 303)),
    "GET /nodes/<name>": PageCase("/nodes/node1", ADMINS),
    "GET /nodes/<name>/audit": PageCase("/nodes/node1/audit", ADMINS),
    "GET /nodes/<name>/samples": PageCase("/nodes/node1/samples", ADMINS),
    "POST /nodes/<name>/doctor": PageCase("/nodes/node1/doctor", ADMINS_DO, {}),
    "GET /new-node": PageCase("/new-node", ADMINS),
    "POST /new-node": PageCase("/new-node", (403, 403, 403, 403, 409), {"name": "node7"}),  # no authority here
    "POST /nodes/<name>/command": PageCase("/nodes/node1/command", (403, 403, 403, 403, 409), {}),
    "POST /nodes/<name>/drain": PageCase("/nodes/node1/drain", ADMINS_DO, {}),
    "POST /nodes/<name>/undrain": PageCase("/nodes/node1/undrain", ADMINS_DO, {}),
    "POST /nodes/<name>/rename": PageCase("/nodes/node1/rename", (403, 403, 403, 403, 409), {"name": "node7"}),
    "POST /nodes/<name>/remove": PageCase("/nodes/node1/remove", (403, 403, 403, 403, 409), SURE),
    "POST /nodes/<name>/evacuate": PageCase("/nodes/node1/evacuate", (403, 403, 403, 403, 409), {"confirmed": "yes"}),
    "POST /nodes/<name>/gc": PageCase("/nodes/node1/gc", ADMINS_DO, {}),
    "POST /nodes/<name>/gc/apply": PageCase("/nodes/node1/gc/apply", (403, 403, 403, 403, 409), {"seen": "x"}),
    "GET /all-slices": PageCase("/all-slices", ADMINS),
    "POST /all-slices/confirm": PageCase("/all-slices/confirm", ADMINS, {"doing": "stop", "chosen": "lab/exp/x"}),
    "POST /all-slices/apply": PageCase(
        "/all-slices/apply", ADMINS_DO, {"doing": "stop", "chosen": "lab/exp/x", "typed": "stop 1"}
    ),
    "GET /log": PageCase("/log", ALL),
    "GET /operations": PageCase("/operations", ALL),
    "GET /experiments": PageCase("/experiments", ALL),
    "GET /experiments/<id>": PageCase("/experiments/EXPERIMENT", ALL),
    "GET /experiments/<id>/files/<file>": PageCase("/experiments/EXPERIMENT/files/report.html", ALL),
    "POST /experiments/<id>/describe": PageCase("/experiments/EXPERIMENT/describe", ADMINS_DO, {"name": "x"}),
    f"GET {EXPERIMENT}": PageCase("/experiments/EXPERIMENT/hide", ADMINS),
    f"POST {EXPERIMENT}": PageCase("/experiments/EXPERIMENT/hide", ADMINS_DO, {}),
}

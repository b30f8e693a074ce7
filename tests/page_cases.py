"""Every page and form, for everybody who could ask: a new page needs a row here. `test_rights_pages` asks them all."""

from __future__ import annotations

from typing import Any, NamedTuple

from bare_service import KEY

ACTORS = ("carol", "dave", "bob", "alice", "root")  # another project's, member, owner, pi, admin


class PageCase(NamedTuple):
    """path: what is bob's, in capitals what `found` of the tenants calls it. expected: the status for each of ACTORS.

    One status: for all of them, and for strangers too.
    """

    path: str
    expected: tuple[int, ...]
    form: dict[str, Any] | None = None


ALL = (200,) * 5
SEEN = (404, 200, 200, 200, 200)
CHANGED = (404, 403, 303, 303, 303)
SLICE, IN = "/slices/exp", "?project=lab"
OWNERS = (404, 403, 200, 200, 200)
CONSOLE = "/slices/<name>/<int:index>/<any(console, screen):what>"
PAGES = {
    "GET /": PageCase("/", (303,)),
    "GET /sign-in": PageCase("/sign-in", (303,) * 5),
    "POST /sign-in": PageCase("/sign-in", (401,), {"user": "bob", "password": "not this one"}),
    "POST /sign-out": PageCase("/sign-out", (303,)),
    "GET /invitation/<secret>": PageCase("/invitation/nobodys", (404,)),
    "POST /invitation/<secret>": PageCase("/invitation/nobodys", (404,), {"password": "x", "repeated": "x"}),
    "GET /static/<version>/<path:name>": PageCase("/static/x/app.css", (200,)),
    "GET /slices": PageCase("/slices", ALL),
    "POST /slices/requests/<id>/withdraw": PageCase("/slices/requests/REQUEST/withdraw", (404, 404, 303, 403, 403), {}),
    "GET /new": PageCase("/new", ALL),
    "POST /new/cost": PageCase("/new/cost", (404, 200, 200, 200, 200), {"project": "lab"}),
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
    "GET /operations/<id>": PageCase("/operations/OPERATION", SEEN),
    f"GET {CONSOLE}": PageCase("/slices/exp/0/console?project=lab", OWNERS),
    f"POST {CONSOLE}/ticket": PageCase("/slices/exp/0/console/ticket?project=lab", OWNERS),
}

"""User accounts, for admins: list, invite, enable and disable."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from flask import Response, request, url_for

from slicemgr.errors import Refused
from slicemgr.policy import access
from slicemgr.service.accounts import deletion, sessions, ssh_keys, tokens, users
from slicemgr.service.views import people
from slicemgr.web.api.people import LINK
from slicemgr.web.pages import confirm, reveal, shell
from slicemgr.web.pages.account import ask_about_key
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

PAGE = 100
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "name": itemgetter("name"),
    "full_name": lambda one: one["full_name"] or None,
    "email": lambda one: one["email"] or None,
    "created": itemgetter("created_at"),
}
_FLAGS = {
    "enable": ({"enabled": True}, "is enabled again."),
    "disable": ({"enabled": False}, "is disabled. Sessions were ended, and tokens are no longer valid."),
    "make-admin": ({"admin": True}, "is now an admin of the testbed."),
    "unmake-admin": ({"admin": False}, "is no longer an admin."),
}
_ADMIN = "Admins see and change everything in the testbed: all slices, projects, accounts and admins."

blueprint = shell.blueprint("people_page", Entry("people_page.every", "People", "people", 62, "Testbed", admin=True))


@blueprint.route("/people")
def every() -> Response:
    """All users, or those that match the search."""
    return _list(Form())


@blueprint.route("/people", methods=["POST"])
@once
def invite() -> Response:
    """Create an account; the next page shows the link once."""
    access.invite(principal())
    form = Form.sent()
    if form["admin"] == "yes" and not confirm.given():
        return confirm.ask(f"Invite {form['name']} as an admin?", _ADMIN, "Invite admin", url_for("people_page.every"))
    raw = {name: form[name] for name in ("name", "full_name", "email")} | {"admin": form["admin"] == "yes"}
    try:
        made = users.invite(state().store, state().config, raw, principal())
    except Refused as error:
        return _list(form, form.take(error, known=("name", "full_name", "email")))
    return _linked(made)


@blueprint.route("/people/<name>")
def show(name: str) -> Response:
    """One account."""
    access.invite(principal())
    return _page(name)


@blueprint.route("/people/<name>/describe", methods=["POST"])
@once
def describe(name: str) -> Response:
    access.invite(principal())
    form = Form.sent()
    try:
        users.change(state().store, name, {one: form[one] for one in ("full_name", "email")}, principal())
    except Refused as error:
        return _page(name, form, form.take(error, known=("full_name", "email")))
    return shell.see("people_page.show", "Saved.", name=name)


@blueprint.route("/people/<name>/account/<what>", methods=["POST"])
@once
def switch(name: str, what: str) -> Response:
    """enable, disable, make-admin, unmake-admin."""
    access.invite(principal())
    if what not in _FLAGS:
        raise access.missing("action", what)
    if what == "make-admin" and not confirm.given():
        return confirm.ask(f"Make {name} an admin?", _ADMIN, "Grant admin role", url_for("people_page.show", name=name))
    values, words = _FLAGS[what]
    users.change(state().store, name, values, principal())
    return shell.see("people_page.show", f"{name} {words}", name=name)


@blueprint.route("/people/<name>/delete", methods=["POST"])
@once
def delete(name: str) -> Response:
    """Delete the account, after a question."""
    access.invite(principal())
    if not confirm.given():
        words = (
            "Keys, tokens, memberships and requests are deleted with it. The log keeps the name. This cannot be undone."
        )
        return confirm.ask(f"Delete {name}?", words, "Delete account", url_for("people_page.show", name=name))
    deletion.delete(state().store, state().config, name, principal())
    return shell.see("people_page.every", f"The account {name} was deleted.")


@blueprint.route("/people/<name>/invitation", methods=["POST"])
@once
def invite_again(name: str) -> Response:
    """Create a new link for a user who lost the link or the password."""
    access.invite(principal())
    return _linked(users.invite_again(state().store, state().config, name, principal()))


@blueprint.route("/people/<name>/keys/<id>/remove", methods=["POST"])
@once
def remove_key(name: str, id: str) -> Response:
    access.invite(principal())
    if question := ask_about_key(name, id, url_for("people_page.show", name=name)):
        return question
    ssh_keys.remove(state().store, id, name, principal())
    return shell.see("people_page.show", "The key was removed.", name=name)


@blueprint.route("/people/<name>/tokens/<id>/revoke", methods=["POST"])
@once
def revoke_token(name: str, id: str) -> Response:
    access.invite(principal())
    tokens.revoke(state().store, id, principal())
    return shell.see("people_page.show", "The token was revoked.", name=name)


@blueprint.route("/people/<name>/sessions/<id>/revoke", methods=["POST"])
@once
def revoke_session(name: str, id: str) -> Response:
    access.invite(principal())
    sessions.revoke(state().store, id, principal())
    return shell.see("people_page.show", "The session was ended.", name=name)


def _linked(made: users.Invitation) -> Response:
    link = (state().config.web.url or request.host_url.rstrip("/")) + LINK + made.secret
    return shell.see("people_page.show", name=made.user, shown=reveal.keep(link))


def _list(form: Form, status: int = 200) -> Response:
    access.invite(principal())
    words, which = request.args.get("q", "").strip().lower()[:80], request.args.get("which", "")
    with state().store.read() as c:
        everybody = people.users(c, principal())
    sorting = Sorting(_COLUMNS)
    found = sorting.rows([one for one in everybody if _matches(one, words, which)])
    pages = max(1, -(-len(found) // PAGE))
    number = min(pages, max(1, request.args.get("page", 1, int)))
    shown = found[(number - 1) * PAGE : number * PAGE]
    values: dict[str, Any] = {"found": len(found), "total": len(everybody), "number": number, "pages": pages}
    values["sorting"] = sorting
    return shell.show("people/list.html", status, form=form, users=shown, words=words, which=which, **values)


def _matches(one: dict[str, Any], words: str, which: str) -> bool:
    texts = (one["name"], one["full_name"], one["email"], *one["projects"])
    if words and not any(words in (text or "").lower() for text in texts):
        return False
    is_so = {
        "admin": one["admin"],
        "disabled": not one["enabled"],
        "invited": not (one["has_password"] or one["openid"]),
    }
    return bool(is_so.get(which, True))


def _page(name: str, form: Form | None = None, status: int = 200) -> Response:
    by = principal()
    with state().store.read() as c:
        user = people.users(c, by, name)[0]
        theirs = {
            "keys": people.keys(c, name),
            "tokens": people.tokens(c, name, by),
            "sessions": people.sessions(c, name, by),
        }
    shown = reveal.read(request.args.get("shown", ""))
    form = form or Form({one: user[one] or "" for one in ("full_name", "email")})
    return shell.show(
        "people/show.html", status, form=form, user=user, shown=shown, asked="shown" in request.args, **theirs
    )

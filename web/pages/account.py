"""The user's SSH keys, tokens, sessions and account."""

from __future__ import annotations

from flask import Response, request, url_for

from slicemgr.errors import Refused, invalid
from slicemgr.service.accounts import passwords, sessions, ssh_keys, tokens, users
from slicemgr.service.views import invitations, people
from slicemgr.web.pages import confirm, known_browser, reveal, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.state import principal, state

_FIELDS = {"key": ("key",), "token": ("label", "scope", "expires"), "password": ("old", "new", "repeated")}

_PERSON = ("full_name", "email", "default_project")

blueprint = shell.blueprint("account", Entry("account.show", "Keys and tokens", "key", 40))


@blueprint.route("/account")
def show() -> Response:
    """Show the account page."""
    return _page(token=reveal.read(request.args.get("shown", "")))


@blueprint.route("/account/keys", methods=["POST"])
@once
def add_key() -> Response:
    """Add the keys of a .pub file."""
    form = Form.sent()
    try:
        added = ssh_keys.add(state().store, form["key"], principal())
    except Refused as error:
        return _again("key", form, error)
    return _back("Your key was added." if len(added) == 1 else f"{len(added)} keys were added.")


def ask_about_key(user: str, id: str, back: str) -> Response | None:
    """The page with the question whether to remove a key that running slices accept; None: remove it."""
    if confirm.given():
        return None
    with state().store.read() as c:
        found = people.keys(c, user, id)
    if not found or not found[0]["running_slices"]:
        return None
    count = found[0]["running_slices"]
    slices = "A running slice accepts" if count == 1 else f"{count} running slices accept"
    words = f"{slices} this key. Who logs in with it alone loses access to them."
    name = found[0]["comment"] or found[0]["fingerprint"]
    return confirm.ask(f"Remove key {name}?", words, "Remove key", back)


@blueprint.route("/account/keys/<id>/remove", methods=["POST"])
@once
def remove_key(id: str) -> Response:
    by = principal()
    if question := ask_about_key(by.user, id, url_for("account.show")):
        return question
    ssh_keys.remove(state().store, id, by.user, by)
    return _back("The key was removed.")


@blueprint.route("/account/tokens", methods=["POST"])
@once
def make_token() -> Response:
    """Create a token; the next page shows it once."""
    form, by = Form.sent(), principal()
    try:
        known = {name: form[name] for name in _FIELDS["token"] if form[name]}
        token, _, _ = tokens.create(state().store, tokens.wanted(known, state().config), by)
    except Refused as error:
        return _again("token", form, error)
    return shell.see("account.show", shown=reveal.keep(token))


@blueprint.route("/account/tokens/<id>/revoke", methods=["POST"])
@once
def revoke_token(id: str) -> Response:
    tokens.revoke(state().store, id, principal())
    return _back("The token was revoked and can no longer be used.")


@blueprint.route("/account/sessions/<id>/revoke", methods=["POST"])
@once
def revoke_session(id: str) -> Response:
    sessions.revoke(state().store, id, principal())
    known_browser.remember(principal().user)
    return _back("The session was ended.")


@blueprint.route("/account/sessions/revoke-others", methods=["POST"])
@once
def revoke_others() -> Response:
    """End all other sessions."""
    count = sessions.revoke_others(state().store, principal())
    known_browser.remember(principal().user)
    ended = (
        f"{count} other sessions were" if count > 1 else "One other session was" if count else "No other session was"
    )
    return _back(f"{ended} ended." if count else "There was no other session.")


@blueprint.route("/account/password", methods=["POST"])
def change_password() -> Response:
    """Change the password; other sessions end. Not `once`, because hashing is slow and would delay other writers."""
    old, new = request.form.get("old", ""), request.form.get("new", "")
    form = Form()  # a form never shows passwords again
    try:
        for name, value in (("old", old), ("new", new)):
            if not value or len(value) > 1024:
                raise invalid(
                    name, "is missing" if not value else "is too long", "" if not value else "1024 characters"
                )
        if new != request.form.get("repeated", ""):
            raise invalid("repeated", "does not match the new password", "enter the same password in both fields")
        users.change_password(state().store, state().authenticator, old, new, principal())
    except Refused as error:
        if error.field == "password":
            error.field = "new"
        return _again("password", form, error)
    known_browser.remember(principal().user)
    return _back("Your password was changed. Your other sessions were ended.")


@blueprint.route("/account/person", methods=["POST"])
@once
def describe() -> Response:
    """Name, mail address and default project."""
    form = Form.sent()
    try:
        known = {name: form[name] for name in ("full_name", "email")}
        if "default_project" in request.form:
            known["default_project"] = form["default_project"]
        users.change(state().store, principal().user, known, principal())
    except Refused as error:
        return _again("person", form, error)
    return _back("Saved.")


def _again(which: str, form: Form, error: Refused) -> Response:
    status = form.take(error, known=_FIELDS.get(which, _PERSON))
    return _page(status, forms={which: form})


def _back(message: str) -> Response:
    return shell.see("account.show", message)


def _page(status: int = 200, *, forms: dict[str, Form] | None = None, token: str = "") -> Response:
    by, config = principal(), state().config
    with state().store.read() as c:
        me = people.me(c, by)
        invited = invitations.of_user(c, by)
        mine = {
            "keys": people.keys(c, by.user),
            "tokens": people.tokens(c, by.user, by),
            "sessions": people.sessions(c, by.user, by),
        }
    fresh = {
        "key": Form(),
        "token": Form({"scope": "write", "expires": "30d"}),
        "password": Form(),
        "person": Form({name: me[name] or "" for name in _PERSON}),
    }
    longest = config.people.token_longest
    spans = [(f"{days}d", words) for days, words in _SPANS if days * 86400 <= longest.total_seconds()]
    values = {
        "me": me,
        "projects": [("", "none (requests must name a project)"), *((name, name) for name in sorted(by.roles))],
        "invited": invited,
        "form": Form(),
        "spans": spans,
        "shown": token,
        "least": passwords.LEAST,
        "asked": bool(request.args.get("shown")),
    }
    return shell.show("account.html", status, forms={**fresh, **(forms or {})}, **mine, **values)


_SPANS = ((1, "1 day"), (7, "7 days"), (30, "30 days"), (90, "90 days"), (180, "6 months"), (365, "1 year"))

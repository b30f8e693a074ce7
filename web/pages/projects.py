"""Projects: members, use, limits and requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask import Response, request, url_for
from sqlalchemy.engine import Connection

from slicemgr.errors import Refused
from slicemgr.model import DEFAULT_PROJECT
from slicemgr.service.leases import rules
from slicemgr.service.projects import invitations, members
from slicemgr.service.views import events as event_views
from slicemgr.service.views import images as image_views
from slicemgr.service.views import invitations as invitation_views
from slicemgr.service.views import people, samples
from slicemgr.service.views import slices as slice_views
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import confirm, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.state import principal, state

SHOWN = 10  # slices and events on a project's page; lists show the rest

blueprint = shell.blueprint("project_page", Entry("project_page.every", "Projects", "project", 20))


@blueprint.route("/projects")
def every() -> Response:
    """The user's projects; all for admins."""
    with state().store.read() as c:
        found = people.project_list(c, principal())
        invited = invitation_views.of_user(c, principal())
    return shell.show("projects/list.html", projects=found, invited=invited, form=Form())


@blueprint.route("/projects/<name>")
def show(name: str) -> Response:
    """One project."""
    return _page(name, Form({"role": "member"}))


@blueprint.route("/projects/<name>/members", methods=["POST"])
@once
def add_member(name: str) -> Response:
    """Invite a user; an admin adds the account directly."""
    form, by, store, config = Form.sent(), principal(), state().store, state().config
    try:
        members.set_member(store, config, name, form["user"], form["role"] or "member", by)
    except Refused as error:
        if error.field == "invitee":
            error.field = "user"
        return _page(name, form, form.take(error, known=("user", "role")))
    if by.admin:
        return _back(name, f"{form['user']} is now a member of {name}.")
    return _back(name, f"{form['user']} was invited. The user becomes a member on accepting the invitation.")


@blueprint.route("/projects/<name>/invitations/<id>/withdraw", methods=["POST"])
@once
def withdraw(name: str, id: str) -> Response:
    """Withdraw an invitation."""
    invitations.withdraw(state().store, name, id, principal())
    return _back(name, "The invitation was withdrawn.")


@blueprint.route("/invitations/<id>/accept", methods=["POST"])
@once
def accept(id: str) -> Response:
    """Accept an invitation."""
    name = invitations.accept(state().store, state().config, id, principal())
    return _back(name, f"You are now a member of {name}.")


@blueprint.route("/invitations/<id>/decline", methods=["POST"])
@once
def decline(id: str) -> Response:
    """Decline an invitation."""
    invitations.decline(state().store, id, principal())
    return shell.see("project_page.every", "The invitation was declined. Its sender is not notified.")


@blueprint.route("/projects/<name>/members/<user>/role", methods=["POST"])
@once
def set_role(name: str, user: str) -> Response:
    role = request.form.get("role", "")
    members.set_member(state().store, state().config, name, user, role, principal())
    return _back(name, f"{user} is now {'PI' if role == 'pi' else 'a member'} of {name}.")


@blueprint.route("/projects/<name>/members/<user>/remove", methods=["POST"])
@once
def remove_member(name: str, user: str) -> Response:
    """Remove a member, or leave; the slices stay in the project."""
    by = principal()
    if user == by.user and not confirm.given():
        words = (
            "You lose access to the slices of the project. Your own slices there remain in it, without your SSH keys."
        )
        return confirm.ask(f"Leave {name}?", words, "Leave project", url_for("project_page.show", name=name))
    members.remove_member(state().store, state().config, name, user, by)
    if user == by.user and not by.admin:
        return shell.see("project_page.every", f"You have left {name}.")
    return _back(name, f"{user} is no longer a member of {name}. The slices of {user} remain in the project.")


def _back(name: str, message: str) -> Response:
    return shell.see("project_page.show", message, name=name)


def _accounts(c: Connection, name: str) -> list[dict[str, Any]]:
    """The resource use of this month and the previous one, by UTC; zeros if there was none."""
    first = utcnow().replace(day=1)
    months = [(first - timedelta(days=1)), first]
    found = {one["month"]: one for one in samples.accounts(c, principal(), name, None, f"{months[0]:%Y-%m}")}
    nothing = dict.fromkeys(samples.ACCOUNTED, 0)
    return [{**nothing, **found.get(f"{one:%Y-%m}", {}), "words": f"{one:%b %Y}"} for one in months]


def _page(name: str, form: Form, status: int = 200) -> Response:
    by, config = principal(), state().config
    with state().store.read() as c:
        project = people.project_list(c, by, name)[0]
        own = slice_views.slices(c, [name])
        values: dict[str, Any] = {
            "slices": own[:SHOWN],
            "count": len(own),
            "images": [one for one in image_views.images(c, projects=[name]) if one["project"] == name],
            "requests": people.requests(c, by, state="waiting", project=name),
            "events": event_views.events(c, by, project=name, limit=SHOWN),
            "rules": rules.view(c, config, name, by),
            "notices": [one for one in own if one["notice"]][:SHOWN],
            "accounts": _accounts(c, name),
            "fixed": name == DEFAULT_PROJECT,
            "creates": invitations.may_create_account(config),
        }
        if by.leads(name):
            there = {one["user"] for one in project["members"]}
            known = people.users(c, by)
            values["others"] = [one for one in known if one["name"] not in there and one["enabled"] is not False]
    leads, mine = by.leads(name), name in by.roles
    return shell.show("projects/show.html", status, form=form, project=project, leads=leads, mine=mine, **values)

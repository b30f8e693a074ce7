"""Add, drain, rename, evacuate and remove nodes, for admins."""

from __future__ import annotations

from flask import Response, url_for

from slicemgr.errors import Refused
from slicemgr.policy import access
from slicemgr.service.nodes import evacuation, membership
from slicemgr.service.views import nodes as node_views
from slicemgr.web.api.membership import join_command
from slicemgr.web.pages import confirm, nodes, reveal, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.state import principal, state

blueprint = shell.blueprint("node_forms", under="node_page.every")


@blueprint.route("/new-node")
def ask() -> Response:
    access.change_nodes(principal(), "add nodes")
    return _new(Form())


@blueprint.route("/new-node", methods=["POST"])
@once
def add() -> Response:
    """Add a node; the next page shows the command for its host once."""
    access.change_nodes(principal(), "add nodes")
    form = Form.sent()
    try:
        made = membership.add(state().store, {name: form[name] for name in ("name", "site")}, principal())
    except Refused as error:
        return _new(form, form.take(error, known=("name", "site")))
    return _added(made)


@blueprint.route("/nodes/<name>/command", methods=["POST"])
@once
def renew_command(name: str) -> Response:
    """Make a new command for a node whose host has not joined; the earlier one becomes invalid."""
    access.change_nodes(principal(), "add nodes")
    with state().store.read() as c:
        site = membership.find(c, name).site
    try:
        made = membership.add(state().store, {"name": name, "site": site}, principal())
    except Refused as error:
        return _refused(name, error)
    return _added(made)


@blueprint.route("/nodes/<name>/drain", methods=["POST"])
@once
def drain(name: str) -> Response:
    membership.drain(state().store, name, principal())
    return shell.see("node_page.show", f"{name} gets no new slivers. Those on it are not changed.", name=name)


@blueprint.route("/nodes/<name>/undrain", methods=["POST"])
@once
def undrain(name: str) -> Response:
    membership.drain(state().store, name, principal(), drained=False)
    return shell.see("node_page.show", f"{name} gets new slivers again.", name=name)


@blueprint.route("/nodes/<name>/rename", methods=["POST"])
@once
def rename(name: str) -> Response:
    form = Form.sent()
    try:
        new = membership.rename(state().store, name, form["name"], principal())
    except Refused as error:
        return _refused(name, error, form)
    return shell.see("node_page.show", f"{name} is now called {new}." if new != name else "", name=new)


@blueprint.route("/nodes/<name>/remove", methods=["POST"])
@once
def remove(name: str) -> Response:
    """Remove a node without slivers, after a question."""
    access.change_nodes(principal(), "remove nodes")
    if not confirm.given():
        words = (
            "Its certificate is revoked, and its audit and its measurements are deleted. To return, its host must join "
            "again. A node that has slivers is not removed."
        )
        return confirm.ask(f"Remove {name}?", words, "Remove node", url_for("node_page.show", name=name))
    try:
        membership.remove(state().store, name, principal())
    except Refused as error:
        return _refused(name, error)
    return shell.see("node_page.every", f"The node {name} was removed.")


@blueprint.route("/nodes/<name>/evacuate", methods=["POST"])
@once
def evacuate(name: str) -> Response:
    """Make the slivers of a lost node again on other nodes, after a question."""
    access.change_nodes(principal(), "evacuate nodes")
    if not confirm.given():
        words = (
            f"All slivers of {name} are made again from their images on other nodes, with other addresses, ports and "
            "host keys. The data on the lost node is lost. If its host returns, it stops these slivers and keeps their "
            "disks for a day."
        )
        return confirm.ask(f"Evacuate {name}?", words, "Evacuate", url_for("node_page.show", name=name))
    try:
        made = evacuation.evacuate(state().store, state().config, name, principal(), lost=True)
    except Refused as error:
        return _refused(name, error)
    count = len(made.operations)
    message = f"{count} {'slice is' if count == 1 else 'slices are'} being made again on other nodes."
    if made.left:
        first = made.left[0]
        more = f" and {len(made.left) - 1} more" if len(made.left) > 1 else ""
        message += f" {first.project}/{first.slice}{more} remains: {first.reason.message}."
    return shell.see("node_page.show", message, "bad" if made.left else "good", name=name)


def _added(made: membership.Added) -> Response:
    return shell.see("node_page.show", name=made.node, shown=reveal.keep(join_command(made)))


def _refused(name: str, error: Refused, form: Form | None = None) -> Response:
    """The page of the node with the error."""
    form = form or Form({"name": name})
    return nodes.page(name, form, form.take(error, known=("name",)))


def _new(form: Form, status: int = 200) -> Response:
    with state().store.read() as c:
        sites = sorted({one["site"] for one in node_views.nodes(c, state().config.network)} - {""})
        ready = bool(state().config.hub.broker) and membership.has_authority(c)
    return shell.show("nodes/new.html", status, form=form, sites=sites, ready=ready)

"""The nodes: a list for all users, and for admins facts, capacity, the check of their requirements, and leftovers."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from flask import Response, request, url_for

from slicemgr import human
from slicemgr.errors import Code, Refused
from slicemgr.policy import access, allocate
from slicemgr.service.nodes import audits, membership, nodes
from slicemgr.service.views import images as image_views
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import pages
from slicemgr.web.pages import browser_session, reveal, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

_SOON = 1.0  # seconds between updates while an operation on the node is running
_MOVING = ("queued", "running")
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "name": itemgetter("name"),
    "site": itemgetter("site"),
    "state": lambda one: one["state"] if one["liveness"] == "alive" else one["liveness"],
    "address": itemgetter("address"),
    "contact": lambda one: one["agent_seen_at"] or "",
    "slivers": lambda one: one["used"]["slivers"],
    "cpus": lambda one: one["capacity"]["cpus"],
    "memory": lambda one: one["capacity"]["memory"],
    "disk": lambda one: one["capacity"]["disk"],
    "allocated": lambda one: one["used"]["memory_limits"],
    "ports": lambda one: one["used"]["ports"],
}
_BYTES = frozenset(f"{what}_{part}" for what in ("swap", "disk", "metadata") for part in ("total", "used", "free")) | {
    "memory",
    "memory_available",
}
_FACTS = {  # labels that differ from the name of the fact
    "slicemgr": "Version of slicemgr",
    "cpus": "CPU cores",
    "memory_available": "Available memory",
    "cgroup": "Control groups",
    "io_weight": "Disk I/O weight",
    "net_rate": "Network rates",
    "addresses": "Private addresses",
    "boot_id": "Boot ID",
    "clock_ahead": "Clock ahead of the centre's, seconds",
    "cpu_model": "CPU model",
    "forwarded": "Its address is that of a router",
    "swap_free": "Free swap",
    "pids": "Processes",
    "pids_max": "Maximum processes",
    "disk_total": "Pool",
    "disk_used": "Pool used",
    "disk_free": "Pool free",
    "metadata_used": "Pool metadata used",
    "metadata_free": "Pool metadata free",
    "quota": "Disk quota",
    "libvirt_lxc": "libvirt for containers",
    "libvirt_kvm": "libvirt for virtual machines",
    "uefi": "UEFI",
}
_CAPS = ("memory", "disk")  # limits of slivers whose sum may exceed the capacity

blueprint = shell.blueprint("node_page", Entry("node_page.every", "Nodes", "node", 60, "Testbed"))


@blueprint.route("/nodes")
def every() -> Response:
    """All nodes, as `GET /nodes` of REST; for admins a single one is shown at once."""
    with state().store.read() as c:
        found = node_views.nodes(c, state().config.network)
    if len(found) == 1 and principal().admin:
        return shell.see("node_page.show", name=found[0]["name"])
    sorting = Sorting(_COLUMNS)
    return shell.show("nodes/list.html", nodes=sorting.rows(found), sorting=sorting)


@blueprint.route("/nodes/<name>")
def show(name: str) -> Response:
    """One node; for htmx the state of its operations."""
    access.run_on_node(principal(), "use the admin pages")
    return page(name, Form({"name": name}))


def page(name: str, form: Form, status: int = 200) -> Response:
    """The page of a node, with the errors of a form that was refused."""
    with state().store.read() as c:
        node = node_views.nodes(c, state().config.network, name)[0]
        joined = membership.find(c, name).identity is not None
        asked = {kind: pages.newest(c, name, kind) for kind in ("doctor", "gc")}
        images = image_views.of_node(c, name)
        there = node_views.slices_on(c, name)
        known = {kind: pages.newest(c, name, kind, ended=True) for kind in ("doctor", "gc")}
    live: dict[str, Any] = {
        "template": "nodes/asked.html",
        "name": "asked",
        "every": _SOON if any(one and one["state"] in _MOVING for one in asked.values()) else 0,
        "path": url_for("node_page.show", name=name),
        "node": node,
        "asked": asked,
        "known": known,
    }
    if browser_session.is_htmx():
        return shell.fresh(**live)
    limits = state().config.limits
    room = {one: int(node["capacity"][one] * getattr(limits, f"{one}_overcommit")) for one in _CAPS}
    room["memory_guarantee"] = allocate.guaranteed(node["capacity"]["memory"], limits) or 0
    return shell.show(
        "nodes/show.html",
        status,
        node=node,
        joined=joined,
        shown=reveal.read(request.args.get("shown", "")),
        asked="shown" in request.args,
        room=room,
        facts=_facts(node["facts"]),
        images=images,
        there=there,
        form=form,
        live=shell.part(**live),
    )


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of a node with one value each, as labels and texts."""
    pools = []
    if {"ports_first", "ports_last"} <= facts.keys():
        pools.append(("Ports", f"{facts['ports_first']} to {facts['ports_last']}"))
    if isinstance(denied := facts.get("denied"), list):
        pools.append(("Denied networks", human.printable(", ".join(map(str, denied))) or "none"))
    plain = [(name, value) for name, value in facts.items() if not isinstance(value, dict | list) and value != ""]
    plain = [(name, value) for name, value in plain if name not in ("ports_first", "ports_last")]
    return pools + [
        (
            _FACTS.get(name) or name.replace("_", " ").capitalize(),
            human.size(value) if name in _BYTES else human.number(value),
        )
        for name, value in plain
    ]


@blueprint.route("/nodes/<name>/audit")
def audit(name: str) -> Response:
    """The node's last audit."""
    access.run_on_node(principal(), "use the admin pages")
    with state().store.read() as c:
        node = node_views.nodes(c, state().config.network, name)[0]
        found = audits.find(c, name)
    return shell.show("nodes/audit.html", node=node, audit=found)


@blueprint.route("/nodes/<name>/doctor", methods=["POST"])
@once
def examine(name: str) -> Response:
    """Check the requirements of the node."""
    nodes.request(state().store, state().config, name, "doctor", principal(), {})
    return shell.see("node_page.show", name=name)


@blueprint.route("/nodes/<name>/gc", methods=["POST"])
@once
def look(name: str) -> Response:
    """List leftovers. Nothing is removed."""
    nodes.request(state().store, state().config, name, "gc", principal(), {"apply": False})
    return shell.see("node_page.show", name=name)


@blueprint.route("/nodes/<name>/gc/apply", methods=["POST"])
@once
def remove(name: str) -> Response:
    """Remove the leftovers that the page showed. Refused(CONFLICT) after a newer listing or removal."""
    access.run_on_node(principal(), "gc")
    with state().store.read() as c:
        node_views.nodes(c, state().config.network, name)
        newest = pages.newest(c, name, "gc")
    if newest is None or newest["id"] != request.form.get("seen"):
        raise Refused(
            Code.CONFLICT, "the page showed an outdated list of leftovers", hint="list the leftovers again first"
        )
    nodes.request(state().store, state().config, name, "gc", principal(), {"apply": True})
    return shell.see("node_page.show", name=name)

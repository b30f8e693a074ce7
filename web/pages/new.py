"""Request a slice: the form, its cost, and beyond the quota the reason."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import timedelta
from typing import Any

from flask import Response, request
from sqlalchemy.engine import Connection

from slicemgr import human
from slicemgr.config import parse_duration, parse_size
from slicemgr.errors import Code, Refused
from slicemgr.policy import access, leases
from slicemgr.policy.quota import OverQuota
from slicemgr.service.projects import projects
from slicemgr.service.slices import requests, slices, specs
from slicemgr.service.views import images as image_views
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import people
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import browser_session, cost, shell
from slicemgr.web.pages.form import Form, once, sentence
from slicemgr.web.pages.shell import Entry
from slicemgr.web.state import principal, state

OWN = "own"  # the choice of a custom size
_WHERE = ("node", "site", "spread", "apart", "on_loss")  # shown if there are several nodes
FIELDS = (
    *("name", "project", "type", "image", "size", "cpu", "memory", "disk", "count", "lease"),
    *("ports", "memory_guarantee", "memory_weight", "memory_max", "net_in", "net_out", "boot", "machine", "init"),
    *("keys", "more_keys", "user_data", "reason"),
    *_WHERE,
)
_PLAIN = (
    *("name", "project", "type", "image", "count", "lease", "ports", "memory_guarantee", "memory_weight"),
    *("net_in", "net_out", "user_data"),
    *_WHERE,
)
_ANY_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43 + " none"  # a placement does not depend on keys
_LEASES = ("1d", "3d", "7d", "14d", "30d", "60d", "90d", "180d", "365d")

blueprint = shell.blueprint("new", Entry("new.ask", "Request a slice", "plus", 11))


@blueprint.route("/new")
def ask() -> Response:
    """The form with default values."""
    config = state().config
    values: dict[str, Any] = {"type": "lxc", "size": "medium", "count": "1", "image": request.args.get("image", "")}
    with state().store.read() as c:
        values["keys"] = [one["id"] for one in people.keys(c, principal().user)]
    values["project"] = request.args.get("project", "") or principal().default_project
    values |= {"memory": _text(config.limits.memory.bytes), "disk": _text(config.limits.disk.bytes)}
    form = Form(values | {"cpu": f"{config.limits.cpu:g}"})
    return shell.show("slices/new.html", form=form, **_choices(form))


@blueprint.route("/new/cost", methods=["POST"])
def price() -> Response:
    """The cost of the current form, and what remains of the quota."""
    form = _sent()
    project = access.project_for(principal(), form["project"] or None)
    with state().store.read() as c:
        return shell.show("slices/cost.html", cost=_cost(c, project, form))


@blueprint.route("/new/preview", methods=["POST"])
def preview() -> Response:
    """Where the slivers of the current form would be placed, and why not on other nodes: for htmx that part alone."""
    form = _sent()
    if browser_session.is_htmx():
        return shell.show("slices/preview.html", preview=_preview(form))
    return shell.show("slices/new.html", form=form, preview=_preview(form), **_choices(form))


def _preview(form: Form) -> dict[str, Any]:
    """`error`, or `nodes` with the number of slivers of each, and `elsewhere`: the reasons against the others."""
    store, config, by = state().store, state().config, principal()
    try:
        with store.read() as c:
            body = {**_body(form), "ssh_keys": _keys(c, form) or [_ANY_KEY]}
        _, placed, _ = slices.plan(store, config, slices.Draft(body), by)
    except Refused as error:
        return {"error": sentence(error)}
    reasons = [reason.message for _, reason in sorted(placed.elsewhere.items())]
    elsewhere = [one[:1].upper() + one[1:] + "." for one in reasons]
    return {"nodes": sorted(Counter(placed.nodes).items()), "elsewhere": elsewhere}


@blueprint.route("/new", methods=["POST"])
@once
def create() -> Response:
    """Create the slice, or beyond the quota a request."""
    form, by, store, config = _sent(), principal(), state().store, state().config
    try:
        why = requests.reason(form["reason"])
        with store.read() as c:
            body = {**_body(form), "ssh_keys": _keys(c, form)}
        made = slices.create(store, config, slices.Draft(body, why), by)
    except Refused as error:
        return _again(form, error)
    if made.request:
        message = (
            f"Your request for {made.spec.name} waits for the decision of a PI of {made.spec.project} or an admin."
        )
        return shell.see("request_page.show", message, "notice", id=made.request)
    return shell.see("slice_page.show", name=made.spec.name, project=made.spec.project)


def _again(form: Form, error: Refused) -> Response:
    """Beyond the quota the form asks for a reason; other errors are shown at their fields."""
    over = isinstance(error, OverQuota)
    if isinstance(error, OverQuota):
        form.errors["reason"] = ["This exceeds the quota of the project. Enter a reason, or request less."]
        form.errors[""] = [sentence(one).partition(":")[0] + "." for one in error.errors]
        return shell.show("slices/new.html", 403, form=form, over=over, **_choices(form))
    if error.code is Code.UNAVAILABLE:
        form.errors[""] = [sentence(error)]
        return shell.show("slices/new.html", 503, form=form, **_choices(form))
    choices = _choices(form)
    keys = "more_keys" if form["more_keys"] or not choices["keys"] else "keys"
    return form.again(error, "slices/new.html", aliases={"ssh_keys": keys}, known=FIELDS, **choices)


def _sent() -> Form:
    form = Form.sent()
    form.values["keys"] = request.form.getlist("keys")[:64]
    return form


def _body(form: Form) -> dict[str, Any]:
    """The JSON of `POST /slices` for the form."""
    body = {name: form[name] for name in _PLAIN if form[name]}
    body |= _size(form)
    if form["type"] == "kvm":
        body |= {name: form[name] for name in ("boot", "machine", "memory_max") if form[name]}
    if form["init"] and form["type"] == "lxc":
        body["init"] = form["init"]
    if "user_data" in body:
        body["user_data"] = body["user_data"].replace("\r\n", "\n") + "\n"
    return body


def _size(form: Form) -> dict[str, Any]:
    chosen = cost.SIZES.get(form["size"])
    if chosen is not None:
        return {"cpu": chosen.cpu, "memory": chosen.memory, "disk": chosen.disk}
    return {name: form[name] for name in ("cpu", "memory", "disk") if form[name]}


def _keys(c: Connection, form: Form) -> list[str]:
    """The selected keys of the account and the pasted ones."""
    own = people.keys(c, principal().user)
    chosen = [one["key"] for one in own if one["id"] in form.values["keys"]]
    return [*chosen, *([form["more_keys"]] if form["more_keys"] else [])]


def _cost(c: Connection, project: str, form: Form) -> cost.Cost:
    policy = projects.lease_policy(c, state().config, project)
    asked = {**form.values, **_size(form)}
    price = cost.estimate(c, state().config, project, asked, min(policy.default, policy.longest))
    return dataclasses.replace(price, invalid=cost.invalid(_body(form), state().config))


def _choices(form: Form) -> dict[str, Any]:
    """The choices of the form and its current cost."""
    by, config = principal(), state().config
    with state().store.read() as c:
        every = [one["name"] for one in people.project_list(c, by)]
        own = sorted(by.roles) or every
        lost = bool(by.roles) and by.default_project not in ("", *every)
        if form["project"] not in every:
            form.values["project"] = own[0] if own and not lost else ""
        project = form["project"]
        images = [one for one in image_views.images(c, projects=access.visible(by)) if one["state"] == "ready"]
        nodes = node_views.nodes(c, config.network)
        types = {one: any(node["facts"].get("kinds", {}).get(one) for node in nodes) for one in ("lxc", "kvm")}
        policy = projects.lease_policy(c, config, project) if project else config.lease
        if not form["lease"]:
            form.values["lease"] = leases.text(min(policy.default, policy.longest))
        return {
            "projects": every,
            "pairs": [*([("", "select a project")] if lost else []), *((one, one) for one in every)],
            "images": images,
            "image_options": [(one["name"], _describe(one)) for one in images],
            "types": types,
            "nodes": nodes,
            "node_options": [("", "any"), *((node["name"], node["name"]) for node in nodes)],
            "site_options": [("", "any"), *((one, one) for one in sorted({node["site"] for node in nodes} - {""}))],
            "size_options": _sizes(),
            "keys": people.keys(c, by.user),
            "leases": lease_options(form["lease"], config.lease.longest),
            "cost": _cost(c, project, form) if project else None,
            "most": {"name": specs.LONGEST_NAME, "count": config.limits.slivers_per_slice},
            "ports": config.network.ports_per_sliver,
            "guarantee": _text(config.limits.memory_guarantee.bytes)
            if config.limits.memory_guarantee.bytes
            else "none",
        }


def _describe(image: dict[str, Any]) -> str:
    words = [
        image["name"],
        human.printable(image["os"]),
        image["arch"],
        f"project {image['project']}" if image["project"] else "",
    ]
    if not image["arch"]:
        words.append("virtual machines only")
    elif not image["boot"]:
        words.append("containers only")
    return " · ".join(word for word in words if word)


def _sizes() -> list[tuple[str, str, str, str, str]]:
    """The choices: value, title, description, no picture, no reason against it."""
    known = [
        (
            name,
            one.title,
            f"{one.cpu:g} CPU {'core' if one.cpu == 1 else 'cores'} · {_unit(one.memory)} · {_unit(one.disk)} disk",
            "",
            "",
        )
        for name, one in cost.SIZES.items()
    ]
    return [*known, (OWN, "Custom", "Enter the values below", "", "")]


def _unit(text: str) -> str:
    return human.size(parse_size(text))


def lease_options(chosen: str, longest: timedelta) -> list[tuple[str, str]]:
    """Leases and when they end."""
    spans: dict[str, timedelta] = {}
    for text in (*_LEASES, leases.text(longest), chosen):
        try:
            span = parse_duration(text)
        except Refused:
            continue
        if timedelta(0) < span <= longest:
            spans[leases.text(span)] = span
    now = utcnow()
    ordered = sorted(spans.items(), key=lambda one: one[1])
    return [(text, f"{_span(span)}, until {now + span:%a %-d %b %Y}") for text, span in ordered]


def _span(span: timedelta) -> str:
    if span >= timedelta(days=1) and span % timedelta(days=1) == timedelta(0):
        return f"{span.days} day{'' if span.days == 1 else 's'}"
    return leases.text(span)


def _text(size: int) -> str:
    """Bytes as text for a form: `512M`, `4G`."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)

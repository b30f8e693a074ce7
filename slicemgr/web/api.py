"""The REST API, /api/v1. A route reads the request, calls one use case, and answers with a view."""

from __future__ import annotations

from typing import Any

from flask import request
from flask_smorest import Blueprint

from slicemgr.errors import invalid
from slicemgr.policy import leases
from slicemgr.service import consoles, images, nodes, slices, specs, views
from slicemgr.store.updates import utcnow
from slicemgr.web import console, schemas, spool
from slicemgr.web.state import authenticate, principal, state

Answer = Any
_SECURED: list[dict[str, list[str]]] = [{"token": []}]
_LONGEST_WAIT = 60.0

health = Blueprint("health", __name__, description="Whether the service is there")
slice_routes = Blueprint("slices", __name__, url_prefix="/api/v1/slices", description="Slices")
image_routes = Blueprint("images", __name__, url_prefix="/api/v1/images", description="Disk images")
node_routes = Blueprint("nodes", __name__, url_prefix="/api/v1/nodes", description="Nodes")
log_routes = Blueprint("operations", __name__, url_prefix="/api/v1", description="Operations and events")


def blueprints() -> tuple[Blueprint, ...]:
    guarded = (slice_routes, image_routes, node_routes, log_routes)
    for blueprint in guarded:
        if authenticate not in blueprint.before_request_funcs.get(None, []):
            blueprint.before_request(authenticate)
    return (health, *guarded)


def _json() -> dict[str, Any]:
    """The body, which must be a JSON object; none counts as an empty one."""
    if not request.get_data(cache=True):
        return {}
    body = request.get_json(silent=True, force=True)
    if not isinstance(body, dict):
        raise invalid("body", "is not a JSON object", 'send something like {"name": "exp"}')
    return body


def _number(name: str, default: float, most: float) -> float:
    text = request.args.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise invalid(name, f"{text[:40]!r} is not a number from 0 to {most:g}")
    return value


def _asked(operation: str, slice: str | None = None) -> dict[str, Any]:
    """The queued operation as an answer, with the slice it is about."""
    with state().store.read() as c:
        answer = {"operation": views.operation(c, operation)}
        if slice is not None:
            answer["slice"] = views.slice(c, slice)
    return answer


@health.route("/healthz")
def healthz() -> Answer:
    """Answers once the database can be read."""
    with state().store.read() as c:
        views.events(c, limit=1)
    return {"status": "ok"}


@slice_routes.route("", methods=["GET"])
@slice_routes.doc(security=_SECURED)
@slice_routes.alt_response(200, schema=schemas.Slices)
def list_slices() -> Answer:
    """Every slice; `state`, `type` and `image` filter."""
    wanted = {name: request.args[name] for name in ("state", "type", "image") if name in request.args}
    with state().store.read() as c:
        found = views.slices(c)
    return {"slices": [one for one in found if all(one[name] == value for name, value in wanted.items())]}


@slice_routes.route("", methods=["POST"])
@slice_routes.doc(security=_SECURED, requestBody=schemas.body(schemas.SLICE_REQUEST))
@slice_routes.alt_response(202, schema=schemas.Asked)
@slice_routes.alt_response(422, schema=schemas.Problem)
def create_slice() -> Answer:
    """Allocate a slice and ask for it; with `dry_run`, only say what it would get."""
    body = _json()
    dry_run = body.pop("dry_run", False)
    if not isinstance(dry_run, bool):
        raise invalid("dry_run", "must be true or false")
    config, store = state().config, state().store
    spec = specs.slice_spec(body, config)
    if dry_run:
        with store.read() as c:
            placed = slices.place(c, config, spec)
            address = views.nodes(c, config.network, placed.node)[0]["address"]
        expires = leases.grant(spec.lease, utcnow(), config.lease)
        return {"plan": views.plan(spec, placed, address, principal().user, expires)}
    return _asked(slices.create(store, config, spec, principal()), spec.name), 202


@slice_routes.route("/<name>", methods=["GET"])
@slice_routes.doc(security=_SECURED)
@slice_routes.alt_response(200, schema=schemas.Slice)
@slice_routes.alt_response(404, schema=schemas.Problem)
def show_slice(name: str) -> Answer:
    """One slice with its slivers."""
    with state().store.read() as c:
        return views.slice(c, name)


@slice_routes.route("/<name>", methods=["DELETE"])
@slice_routes.doc(security=_SECURED)
@slice_routes.alt_response(202, schema=schemas.Asked)
def delete_slice(name: str) -> Answer:
    """Ask for a slice to be deleted."""
    return _asked(slices.act(state().store, state().config, name, "delete", principal())), 202


@slice_routes.route("/<name>/renew", methods=["POST"])
@slice_routes.doc(
    security=_SECURED, requestBody=schemas.body({"type": "object", "properties": {"lease": {"type": "string"}}})
)
@slice_routes.alt_response(200, schema=schemas.Slice)
def renew_slice(name: str) -> Answer:
    """Let a slice live on; the answer has the date that was granted."""
    slices.renew(state().store, state().config, name, specs.renewal(_json().get("lease")), principal())
    with state().store.read() as c:
        return views.slice(c, name)


@slice_routes.route("/<name>/resize", methods=["POST"])
@slice_routes.doc(
    security=_SECURED, requestBody=schemas.body({"type": "object", "properties": {"disk": {"type": "string"}}})
)
@slice_routes.alt_response(202, schema=schemas.Asked)
def resize_slice(name: str) -> Answer:
    """Raise the disk limit of each sliver."""
    wanted = specs.disk(_json().get("disk"))
    return _asked(slices.resize(state().store, state().config, name, wanted, principal()), name), 202


@slice_routes.route("/<name>/console", methods=["POST"])
@slice_routes.doc(
    security=_SECURED,
    requestBody=schemas.body({"type": "object", "properties": {"sliver": {"type": "integer", "default": 0}}}),
)
@slice_routes.alt_response(200, schema=schemas.Console)
@slice_routes.alt_response(409, schema=schemas.Problem)
def ask_for_console(name: str) -> Answer:
    """A token that opens the console of a running sliver, once and soon, at `path`."""
    index = specs.sliver_index(_json().get("sliver", 0))
    return {"token": consoles.ask(state().store, name, index, principal()), "path": console.PATH}


@slice_routes.route("/<name>/<action>", methods=["POST"])
@slice_routes.doc(security=_SECURED)
@slice_routes.alt_response(202, schema=schemas.Asked)
@slice_routes.alt_response(409, schema=schemas.Problem)
def act_on_slice(name: str, action: str) -> Answer:
    """start, stop, restart, pause or resume."""
    act = slices.check_action(action)
    return _asked(slices.act(state().store, state().config, name, act, principal()), name), 202


@image_routes.route("", methods=["GET"])
@image_routes.doc(security=_SECURED)
@image_routes.alt_response(200, schema=schemas.Images)
def list_images() -> Answer:
    """Every image."""
    with state().store.read() as c:
        return {"images": views.images(c)}


@image_routes.route("", methods=["POST"])
@image_routes.doc(
    security=_SECURED,
    parameters=[
        {"in": "query", "name": "name", "required": True, "schema": {"type": "string"}},
        {"in": "query", "name": "format", "required": True, "schema": {"type": "string", "enum": ["qcow2", "raw"]}},
    ],
    requestBody={"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
)
@image_routes.alt_response(202, schema=schemas.Asked)
@image_routes.alt_response(200, schema=schemas.Asked)
def import_image() -> Answer:
    """Send a disk image; the same file again answers with the image there is."""
    config, store = state().config, state().store
    name, format = request.args.get("name", ""), request.args.get("format", "")
    images.check_upload(store, name, format, principal())
    with spool.receive(config) as received:
        upload = images.Upload(name, format, received.sha256, received.size)
        sha256, operation = images.register_upload(store, config, upload, principal(), received.keep)
    with store.read() as c:
        answer: dict[str, Any] = {"image": views.images(c, sha256)[0]}
        if operation is None:
            return answer, 200
        return {**answer, "operation": views.operation(c, operation)}, 202


@image_routes.route("/<name>", methods=["GET"])
@image_routes.doc(security=_SECURED)
@image_routes.alt_response(200, schema=schemas.Image)
def show_image(name: str) -> Answer:
    """One image, by name, sha256 or the beginning of that."""
    with state().store.read() as c:
        return views.images(c, name)[0]


@image_routes.route("/<name>", methods=["DELETE"])
@image_routes.doc(security=_SECURED)
@image_routes.alt_response(202, schema=schemas.Asked)
@image_routes.alt_response(409, schema=schemas.Problem)
def delete_image(name: str) -> Answer:
    """Ask for an image to be deleted; not while a slice uses it."""
    return _asked(images.delete(state().store, state().config, name, principal())), 202


@node_routes.route("", methods=["GET"])
@node_routes.doc(security=_SECURED)
@node_routes.alt_response(200, schema=schemas.Nodes)
def list_nodes() -> Answer:
    """Every node."""
    with state().store.read() as c:
        return {"nodes": views.nodes(c, state().config.network)}


@node_routes.route("/<name>", methods=["GET"])
@node_routes.doc(security=_SECURED)
@node_routes.alt_response(200, schema=schemas.Node)
def show_node(name: str) -> Answer:
    """One node: facts, capacity, what of it is given."""
    with state().store.read() as c:
        return views.nodes(c, state().config.network, name)[0]


@node_routes.route("/<name>/doctor", methods=["POST"])
@node_routes.doc(security=_SECURED)
@node_routes.alt_response(202, schema=schemas.Asked)
def examine_node(name: str) -> Answer:
    """Ask the node's agent to check everything it needs; the result has `checks`."""
    return _asked(nodes.request(state().store, state().config, name, "doctor", principal(), {})), 202


@node_routes.route("/<name>/gc", methods=["POST"])
@node_routes.doc(
    security=_SECURED, requestBody=schemas.body({"type": "object", "properties": {"apply": {"type": "boolean"}}})
)
@node_routes.alt_response(202, schema=schemas.Asked)
def collect_garbage(name: str) -> Answer:
    """Ask for what carries our mark but nobody wants; with `apply`, remove it. The result has `items`."""
    apply = _json().get("apply", False)
    if not isinstance(apply, bool):
        raise invalid("apply", "must be true or false")
    return _asked(nodes.request(state().store, state().config, name, "gc", principal(), {"apply": apply})), 202


@node_routes.route("/<name>/baseline", methods=["POST"])
@node_routes.doc(security=_SECURED)
@node_routes.alt_response(202, schema=schemas.Asked)
def measure_baseline(name: str) -> Answer:
    """Ask the node to measure the same work without slicemgr around it: the baseline of `slicectl bench`."""
    params = specs.baseline(_json(), state().config)
    return _asked(nodes.request(state().store, state().config, name, "baseline", principal(), params)), 202


@log_routes.route("/operations", methods=["GET"])
@log_routes.doc(security=_SECURED)
@log_routes.alt_response(200, schema=schemas.Operations)
def list_operations() -> Answer:
    """The newest operations; `state` and `slice` filter, `limit` (50) bounds."""
    limit = int(_number("limit", 50, 1000))
    filters = {"state": request.args.get("state", ""), "slice": request.args.get("slice", "")}
    with state().store.read() as c:
        return {"operations": views.operations(c, limit=limit, **filters)}


@log_routes.route("/operations/<id>", methods=["GET"])
@log_routes.doc(security=_SECURED)
@log_routes.alt_response(200, schema=schemas.Operation)
def show_operation(id: str) -> Answer:
    """One operation. `wait`: hold the answer back (seconds) until it ended or its version is beyond `seen`."""
    wait, seen = _number("wait", 0, _LONGEST_WAIT), _number("seen", 2**53, 2**53)
    if wait:
        state().news.wait(id, int(seen), wait)
    with state().store.read() as c:
        return views.operation(c, id)


@log_routes.route("/events", methods=["GET"])
@log_routes.doc(security=_SECURED)
@log_routes.alt_response(200, schema=schemas.Events)
def list_events() -> Answer:
    """The newest events; `slice` filters, `limit` (100) bounds."""
    limit = int(_number("limit", 100, 1000))
    with state().store.read() as c:
        return {"events": views.events(c, slice=request.args.get("slice", ""), limit=limit)}

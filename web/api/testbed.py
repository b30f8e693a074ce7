"""Slices, images, nodes, operations and events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.errors import Busy, invalid
from slicemgr.policy import access
from slicemgr.service.nodes import images, nodes
from slicemgr.service.slices import limit_changes, requests, slices, specs
from slicemgr.service.views import events as event_views
from slicemgr.service.views import filters, people
from slicemgr.service.views import images as image_views
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.web import follow, schemas, schemas_leases, schemas_nodes, spool
from slicemgr.web.api import lists, reading, tickets
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.foreign import text_answer
from slicemgr.web.state import asker, principal, state, version
from slicemgr.web.thread_limits import Kind

health = Blueprint("health", __name__, description="Whether the service is there")
slice_routes = Blueprint("slices", __name__, url_prefix="/api/v1/slices", description="Slices")
image_routes = Blueprint("images", __name__, url_prefix="/api/v1/images", description="Disk images")
node_routes = Blueprint("nodes", __name__, url_prefix="/api/v1/nodes", description="Nodes")
log_routes = Blueprint("operations", __name__, url_prefix="/api/v1", description="Operations and events")


@health.route("/healthz")
@health.alt_response(200, schema=schemas.Health)
def healthz() -> Answer:
    """Answers once the database can be read."""
    with state().store.read() as c:
        event_views.events(c, limit=1)
    return {"status": "ok"}


@slice_routes.route("", methods=["GET"])
@slice_routes.doc(security=SECURED, parameters=[*lists.SLICES.parameters, reading.IF_NONE_MATCH])
@slice_routes.alt_response(200, schema=schemas.Slices, headers=reading.ETAG)
@slice_routes.alt_response(304, description="unchanged: the client has the answer")
def list_slices() -> Answer:
    """List the slices of your projects with their slivers, by name."""
    wanted, page = lists.SLICES.read()

    def read() -> dict[str, Any]:
        with state().store.read() as c:
            found = slice_views.slices(c, access.visible(principal()), where=filters.slices(wanted), page=page)
        return lists.SLICES.answer(found, page)

    return state().kept_answers.answer(read, principal().user, version())


@slice_routes.route("", methods=["POST"])
@slice_routes.doc(security=SECURED, requestBody=schemas.body(schemas.SLICE_REQUEST))
@slice_routes.alt_response(202, schema=schemas.Asked)
@slice_routes.alt_response(403, schema=schemas.Problem)
@slice_routes.alt_response(422, schema=schemas.Problem)
def create_slice() -> Answer:
    """Create a slice. With `dry_run`, only return its allocation.

    If it exceeds the quota of the project, this fails, or with a `reason` creates a request.
    """
    body, by = reading.body(), principal()
    dry_run, why = body.pop("dry_run", False), requests.reason(body.pop("reason", None))
    if not isinstance(dry_run, bool):
        raise invalid("dry_run", "must be true or false")
    config, store = state().config, state().store
    if dry_run:
        spec, placed, expires = slices.plan(store, config, slices.Draft(body), by)
        return {"plan": slice_views.plan(spec, placed, by.user, expires)}
    made = slices.create(store, config, slices.Draft(body, why), by)
    if made.request:
        with store.read() as c:
            return {"request": people.requests(c, by, made.request)[0]}, 202
    return reading.asked(made.operation, with_slice=True), 202


@slice_routes.route("/<name>", methods=["GET"])
@slice_routes.doc(security=SECURED, parameters=[reading.PROJECT])
@slice_routes.alt_response(200, schema=schemas.Slice)
@slice_routes.alt_response(404, schema=schemas.Problem)
def show_slice(name: str) -> Answer:
    """Show one slice with its slivers."""
    with state().store.read() as c:
        return slice_views.slice_of(c, slices.find(c, name, principal(), reading.project()).id)


@slice_routes.route("/<name>", methods=["DELETE"])
@slice_routes.doc(security=SECURED, parameters=[reading.PROJECT])
@slice_routes.alt_response(202, schema=schemas.Asked)
def delete_slice(name: str) -> Answer:
    """Delete a slice."""
    operation = slices.act(state().store, state().config, name, "delete", principal(), project=reading.project())
    return reading.asked(operation), 202


@slice_routes.route("/<name>/renew", methods=["POST"])
@slice_routes.doc(
    security=SECURED,
    parameters=[reading.PROJECT],
    requestBody=schemas.body({"type": "object", "properties": {"lease": {"type": "string"}}}),
)
@slice_routes.alt_response(200, schema=schemas_leases.Renewed)
@slice_routes.alt_response(409, schema=schemas.Problem)
def renew_slice(name: str) -> Answer:
    """Renew the lease of a slice. The response has the new end, and if it was `trimmed`, the reason."""
    lease, by, project = specs.renewal(reading.body().get("lease")), principal(), reading.project()
    granted = slices.renew(state().store, state().config, name, lease, by, project=project)
    with state().store.read() as c:
        return {**slice_views.slice_of(c, slices.find(c, name, by, project).id), "trimmed": granted.why or None}


@slice_routes.route("/<name>/resize", methods=["POST"])
@slice_routes.doc(
    security=SECURED,
    parameters=[reading.PROJECT],
    requestBody=schemas.body(schemas.RESIZE_REQUEST),
)
@slice_routes.alt_response(202, schema=schemas.Asked)
@slice_routes.alt_response(403, schema=schemas.Problem)
def resize_slice(name: str) -> Answer:
    """Change limits of each sliver: its disk, which can only grow, and its memory, guarantee and weight.

    Slivers that run get them at once; a virtual machine must be stopped for more `memory` than it started with. A
    change beyond the quota of the project fails, or with a `reason` creates a request.
    """
    body, by, project = reading.body(), principal(), reading.project()
    wanted, why = limit_changes.read(body), requests.reason(body.get("reason"))
    made = limit_changes.resize(state().store, state().config, name, wanted, by, project=project, why=why)
    if made.request:
        with state().store.read() as c:
            return {"request": people.requests(c, by, made.request)[0]}, 202
    return reading.asked(made.operation, with_slice=True), 202


@slice_routes.route("/<name>/console", methods=["POST"])
@slice_routes.doc(
    security=SECURED,
    parameters=[reading.PROJECT],
    requestBody=schemas.body(schemas.CONSOLE_REQUEST),
)
@slice_routes.alt_response(200, schema=schemas.Console)
@slice_routes.alt_response(409, schema=schemas.Problem)
def ask_for_console(name: str) -> Answer:
    """Create a short-lived token that opens the console of a running sliver or the screen of a virtual machine once."""
    return tickets.give(name, reading.body(), principal(), reading.project())


@slice_routes.route("/<name>/<action>", methods=["POST"])
@slice_routes.doc(security=SECURED, parameters=[reading.PROJECT])
@slice_routes.alt_response(202, schema=schemas.Asked)
@slice_routes.alt_response(409, schema=schemas.Problem)
def act_on_slice(name: str, action: str) -> Answer:
    """start, stop, restart, pause or resume."""
    act = slices.check_action(action)
    operation = slices.act(state().store, state().config, name, act, principal(), project=reading.project())
    return reading.asked(operation, with_slice=True), 202


@image_routes.route("", methods=["GET"])
@image_routes.doc(security=SECURED, parameters=lists.IMAGES.parameters)
@image_routes.alt_response(200, schema=schemas.Images)
def list_images() -> Answer:
    """List the images that are available to all projects and those of your projects, by name."""
    wanted, page = lists.IMAGES.read()
    with state().store.read() as c:
        found = image_views.images(c, projects=access.visible(principal()), where=filters.images(wanted), page=page)
    return lists.IMAGES.answer(found, page)


@image_routes.route("", methods=["POST"])
@image_routes.doc(
    security=SECURED,
    parameters=[
        {"in": "query", "name": "name", "required": True, "schema": {"type": "string"}},
        {"in": "query", "name": "format", "required": True, "schema": {"type": "string", "enum": ["qcow2", "raw"]}},
        {"in": "query", "name": "project", "schema": {"type": "string"}, "description": "whose; an admin's: for all"},
    ],
    requestBody={"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
)
@image_routes.alt_response(202, schema=schemas.Asked)
@image_routes.alt_response(200, schema=schemas.Asked)
def import_image() -> Answer:
    """Import a disk image. Sending the same file again returns the existing image."""
    config, store = state().config, state().store
    name, format, by = request.args.get("name", ""), request.args.get("format", ""), principal()
    project = images.project_for(by, reading.project())
    images.check_upload(store, name, format, by, project, request.content_length or 0)
    with spool.receive(config) as received:
        upload = images.Upload(name, format, received.sha256, received.size, project)
        sha256, operation = images.register_upload(store, config, upload, by, received.keep)
    with store.read() as c:
        answer: dict[str, Any] = {"image": image_views.images(c, sha256)[0]}
        if operation is None:
            return answer, 200
        return {**answer, "operation": operation_views.operation(c, operation)}, 202


@image_routes.route("/<name>", methods=["GET"])
@image_routes.doc(security=SECURED)
@image_routes.alt_response(200, schema=schemas.Image)
def show_image(name: str) -> Answer:
    """Show one image, by name or by sha256 or its first digits."""
    with state().store.read() as c:
        return image_views.images(c, images.find(c, name, principal()).sha256)[0]


@image_routes.route("/<name>", methods=["DELETE"])
@image_routes.doc(security=SECURED)
@image_routes.alt_response(202, schema=schemas.Asked)
@image_routes.alt_response(409, schema=schemas.Problem)
def delete_image(name: str) -> Answer:
    """Delete an image that no slice uses."""
    return reading.asked(images.delete(state().store, state().config, name, principal())), 202


@image_routes.route("/<name>/publish", methods=["POST"])
@image_routes.doc(security=SECURED)
@image_routes.alt_response(200, schema=schemas.Image)
def publish_image(name: str) -> Answer:
    """Make an image of a project available to all projects."""
    sha256 = images.publish(state().store, name, principal())
    with state().store.read() as c:
        return image_views.images(c, sha256)[0]


@image_routes.route("/<name>/nodes", methods=["GET"])
@image_routes.doc(security=SECURED)
@image_routes.alt_response(200, schema=schemas_nodes.NodesOfImage)
def list_nodes_of_image(name: str) -> Answer:
    """List what each node has of an image. Nodes that have nothing of it are omitted."""
    with state().store.read() as c:
        return {"nodes": image_views.on_nodes(c, images.find(c, name, principal()).sha256)}


@image_routes.route("/<name>/kernel-config", methods=["GET"])
@image_routes.doc(security=SECURED, responses=schemas.KERNEL_CONFIG)
@image_routes.alt_response(404, schema=schemas.Problem)
def show_kernel_config(name: str) -> Response:
    """Show the configuration of the kernel in an image. It is printable ASCII."""
    with state().store.read() as c:
        found = images.find(c, name, principal())
        return text_answer(image_views.kernel_config(c, found.sha256, found.name))


@image_routes.route("/<name>/push", methods=["POST"])
@image_routes.doc(security=SECURED, requestBody=schemas.body(schemas_nodes.PUSH_REQUEST))
@image_routes.alt_response(202, schema=schemas.Asked)
@image_routes.alt_response(409, schema=schemas.Problem)
def push_image(name: str) -> Answer:
    """Have an image on a node before a sliver needs it."""
    body = reading.body()
    reading.only(body, "node")
    node = reading.text(body, "node")
    return reading.asked(images.push(state().store, state().config, name, node, principal())), 202


@node_routes.route("", methods=["GET"])
@node_routes.doc(security=SECURED, parameters=lists.NODES.parameters)
@node_routes.alt_response(200, schema=schemas.Nodes)
def list_nodes() -> Answer:
    """List the nodes by name."""
    _, page = lists.NODES.read()
    with state().store.read() as c:
        return lists.NODES.answer(node_views.nodes(c, state().config.network, page=page), page)


@node_routes.route("/<name>", methods=["GET"])
@node_routes.doc(security=SECURED)
@node_routes.alt_response(200, schema=schemas.Node)
def show_node(name: str) -> Answer:
    """Show the facts, capacity and allocation of one node."""
    with state().store.read() as c:
        return node_views.nodes(c, state().config.network, name)[0]


@node_routes.route("/<name>/doctor", methods=["POST"])
@node_routes.doc(security=SECURED)
@node_routes.alt_response(202, schema=schemas.Asked)
def examine_node(name: str) -> Answer:
    """Check the requirements of the node. The result has `checks`."""
    return reading.asked(nodes.request(state().store, state().config, name, "doctor", principal(), {})), 202


@node_routes.route("/<name>/gc", methods=["POST"])
@node_routes.doc(
    security=SECURED, requestBody=schemas.body({"type": "object", "properties": {"apply": {"type": "boolean"}}})
)
@node_routes.alt_response(202, schema=schemas.Asked)
def collect_garbage(name: str) -> Answer:
    """List the leftovers of the node: objects of slicemgr that belong to no slice or image. `apply` removes them."""
    apply = reading.body().get("apply", False)
    if not isinstance(apply, bool):
        raise invalid("apply", "must be true or false")
    return reading.asked(nodes.request(state().store, state().config, name, "gc", principal(), {"apply": apply})), 202


@node_routes.route("/<name>/baseline", methods=["POST"])
@node_routes.doc(security=SECURED, requestBody=schemas.body(schemas.BASELINE_REQUEST))
@node_routes.alt_response(202, schema=schemas.Asked)
def measure_baseline(name: str) -> Answer:
    """Measure the same work on the node without slicemgr: the baseline of `slicectl bench`."""
    params = specs.baseline(reading.body(), state().config)
    return reading.asked(nodes.request(state().store, state().config, name, "baseline", principal(), params)), 202


@log_routes.route("/operations", methods=["GET"])
@log_routes.doc(security=SECURED, parameters=lists.OPERATIONS.parameters)
@log_routes.alt_response(200, schema=schemas.Operations)
def list_operations() -> Answer:
    """List the operations of your projects, newest first."""
    wanted, page = lists.OPERATIONS.read()
    with state().store.read() as c:
        found = operation_views.operations(c, access.visible(principal()), where=filters.operations(wanted), page=page)
    return lists.OPERATIONS.answer(found, page)


@log_routes.route("/operations/<id>", methods=["GET"])
@log_routes.doc(security=SECURED, parameters=reading.WAITING)
@log_routes.alt_response(200, schema=schemas.Operation)
def show_operation(id: str) -> Answer:
    """Show one operation. `wait`: seconds to wait until it has ended or its version exceeds `seen`."""
    wait, seen = reading.number("wait", 0, reading.LONGEST_WAIT), reading.number("seen", 2**53, 2**53)
    if wait:
        with state().store.read() as c:
            operation_views.operation(c, id, principal())  # checks access before waiting
        with (
            suppress(Busy),
            state().thread_limits.held(Kind.WAIT, principal().user),
        ):  # no room: the answer is not held back
            state().news.wait(id, int(seen), wait)
    with state().store.read() as c:
        return operation_views.operation(c, id, principal())


@log_routes.route("/operations/<id>/events", methods=["GET"])
@log_routes.doc(security=SECURED, parameters=[reading.LAST_EVENT], responses=reading.EVENT_STREAM)
@log_routes.alt_response(503, schema=schemas.Problem)
def follow_operation(id: str) -> Answer:
    """Follow an operation as server-sent events until it has ended.

    The event `operation` carries the operation after each change, and `end` its last state. `gone`: the operation is
    not available. The service sends a comment after 15 seconds without an event.
    """
    return follow.stream(state().thread_limits, state().store, state().news, id, asker(), principal())


@log_routes.route("/events", methods=["GET"])
@log_routes.doc(security=SECURED, parameters=lists.EVENTS.parameters)
@log_routes.alt_response(200, schema=schemas.Events)
def list_events() -> Answer:
    """List the events of your projects and your own events, newest first."""
    wanted, page = lists.EVENTS.read()
    with state().store.read() as c:
        return lists.EVENTS.answer(event_views.events(c, principal(), where=filters.events(wanted), page=page), page)

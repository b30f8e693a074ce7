"""Resource use: of slices and nodes over time, the current top, and accounts of projects by month."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.errors import invalid
from slicemgr.policy import access
from slicemgr.service.slices import slices
from slicemgr.service.views import remote_samples, samples
from slicemgr.store.updates import utcnow
from slicemgr.web import schemas, schemas_samples
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("samples", __name__, url_prefix="/api/v1", description="What was measured")


def _query(name: str, text: str) -> dict[str, Any]:
    return {"in": "query", "name": name, "schema": {"type": "string"}, "description": text}


_FORMAT = _query("format", "json or csv; without it the Accept header decides")
_WINDOW = [
    _query("since", "RFC 3339, or how long ago: 1h"),
    _query("until", "the same; without it the present"),
    _query("resolution", "auto, raw, 5m or 1h"),
    _query("columns", "which series, with commas between"),
    _FORMAT,
]


def _time_range() -> samples.TimeRange:
    given = request.args
    return samples.time_range(state().config.record, given.get("since"), given.get("until"), given.get("resolution"))


def _flag(name: str) -> bool:
    given = request.args.get(name, "false")
    if given not in ("true", "false"):
        raise invalid(name, "must be true or false")
    return given == "true"


def _wants_csv() -> bool:
    given = request.args.get("format", "")
    if given not in ("", "json", "csv"):
        raise invalid("format", f"{given[:40]!r} is unknown", "json or csv")
    best = request.accept_mimetypes.best_match(("application/json", "text/csv"), "application/json")
    return given == "csv" or (not given and best == "text/csv")


def _csv(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> Response:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerows([header, *lines])
    return Response(target.getvalue(), mimetype="text/csv")


def series(answer: dict[str, Any]) -> Answer:
    """Series in the requested format: columns in JSON, or lines in CSV."""
    return _csv(*samples.flat(answer)) if _wants_csv() else answer


@routes.route("/slices/<name>/samples", methods=["GET"])
@routes.doc(
    security=SECURED,
    parameters=[reading.PROJECT, *_WINDOW, _query("total", "true: all slivers together")],
)
@routes.alt_response(200, schema=schemas_samples.SliceSamples)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def slice_samples(name: str) -> Answer:
    """Show the usage of a slice: memory, swap, disk, CPU cores, network and block I/O (bytes per second) per sliver."""
    wanted, columns = _time_range(), samples.chosen(request.args.get("columns"), samples.OF_SLIVERS)
    total = _flag("total")
    with state().store.read() as c:
        id = slices.find(c, name, principal(), reading.project()).id
        asked = remote_samples.of_slice(c, id, wanted.span, total=total)
    others = state().remote_samples.ask(asked)
    with state().store.read() as c:
        id = slices.find(c, name, principal(), reading.project()).id
        return series(samples.of_slice(c, state().config, id, wanted, columns, total=total, others=others))


@routes.route("/nodes/<name>/samples", methods=["GET"])
@routes.doc(security=SECURED, parameters=_WINDOW)
@routes.alt_response(200, schema=schemas_samples.NodeSamples)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def node_samples(name: str) -> Answer:
    """Show the usage of a node."""
    wanted, columns = _time_range(), samples.chosen(request.args.get("columns"), samples.OF_NODES)
    with state().store.read() as c:
        asked = remote_samples.of_node(c, name, wanted.span)
    others = state().remote_samples.ask(asked)
    with state().store.read() as c:
        return series(samples.of_node(c, state().config, name, wanted, columns, others=others))


@routes.route("/top", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_samples.Top)
def top() -> Answer:
    """Show the last sample of every running sliver of your projects, and of the nodes."""
    now, config = utcnow(), state().config
    with state().store.read() as c:
        asked = remote_samples.newest(c, access.visible(principal()), *samples.current(config, now))
    others = state().remote_samples.ask(asked)
    with state().store.read() as c:
        return samples.top(c, config, principal(), now, others=others)


@routes.route("/accounts", methods=["GET"])
@routes.doc(
    security=SECURED,
    parameters=lists.ACCOUNTS.parameters,
)
@routes.alt_response(200, schema=schemas_samples.Accounts)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def list_accounts() -> Answer:
    """Show the usage of your projects by month (UTC): sliver hours, CPU core hours, GiB hours, bytes."""
    wanted, page = lists.ACCOUNTS.read()
    with state().store.read() as c:
        found = samples.accounts(c, principal(), wanted.get("project"), wanted.get("month"), wanted.get("since"), page)
    if _wants_csv():
        header = ("project", "month", *samples.ACCOUNTED)
        return _csv(header, [[one[name] for name in header] for one in found])
    return lists.ACCOUNTS.answer(found, page)

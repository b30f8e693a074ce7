"""Measurements on a node itself. For admins, because they use disk and CPU of all slivers."""

from __future__ import annotations

from typing import Any

from flask_smorest import Blueprint

from slicemgr.policy import measurements
from slicemgr.service.nodes import nodes
from slicemgr.web import schemas, schemas_measures
from slicemgr.web.api import reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("measures", __name__, url_prefix="/api/v1/nodes/<name>", description="Measurements on a node")


@routes.route("/io", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_measures.IO_REQUEST))
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def measure_io(name: str) -> Answer:
    """Create a root from an image, and read and write data there. `measured` has seconds, or the `missing` program."""
    return _measurement(name, "io", measurements.io(reading.body()))


@routes.route("/sysbench", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_measures.SYSBENCH_REQUEST))
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def measure_sysbench(name: str) -> Answer:
    """Run one sysbench test on the node. `measured` has its results, or the `missing` program."""
    return _measurement(name, "sysbench", measurements.sysbench(reading.body()))


@routes.route("/memory", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_measures.MEMORY_REQUEST))
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def measure_memory(name: str) -> Answer:
    """Hold memory of the node for a while. `measured` has what was available, free and taken in each second."""
    return _measurement(name, "memory", measurements.memory(reading.body()))


def _measurement(name: str, kind: str, params: dict[str, Any]) -> Answer:
    return reading.asked(nodes.request(state().store, state().config, name, kind, principal(), params)), 202

"""`/metrics` for Prometheus, with an admin's token; a read-only one suffices."""

from __future__ import annotations

from flask import Response, request
from flask_smorest import Blueprint
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from slicemgr.policy import access
from slicemgr.service.views.metrics import Testbed
from slicemgr.web.api.reading import SECURED
from slicemgr.web.broker_metrics import BrokerMetrics
from slicemgr.web.state import authenticate, principal, state

blueprint = Blueprint("metrics", __name__, description="For Prometheus")
blueprint.before_request(authenticate)


@blueprint.route("/metrics", methods=["GET"])
@blueprint.doc(security=SECURED)
def metrics() -> Response:
    """All metrics, as text."""
    access.see_metrics(principal())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Testbed(state().store, state().config))
    registry.register(BrokerMetrics(state().config.broker_file))
    registry.register(state().refusals)
    registry.register(state().image_traffic)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(registry), content_type=content_type)

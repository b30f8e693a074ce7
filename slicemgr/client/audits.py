"""The last isolation audit of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from slicemgr.client.paths import segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Audits(Resource):
    def get(self, node: str) -> wire.Audit:
        """The last audit of the node. Raises Refused(NOT_FOUND) if there was none."""
        return cast("wire.Audit", self._connection.call("GET", _path(node)))

    def put(self, node: str, audit: dict[str, object]) -> wire.Audit:
        """Store an audit, which replaces the last one. audit: `began_at` and `rows`."""
        return cast("wire.Audit", self._connection.call("PUT", _path(node), audit))


def _path(node: str) -> str:
    return f"/nodes/{segment('NODE', node)}/audit"

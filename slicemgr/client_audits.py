"""The client's methods about audits: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from slicemgr.client_json import operation_in, segment

if TYPE_CHECKING:
    from slicemgr import wire


class Audits:
    """`_call` is the client's."""

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def audit(self, node: str) -> wire.Audit:
        """The node's last audit. Refused(NOT_FOUND) if there was none."""
        return cast("wire.Audit", self._call("GET", _path(node)))

    def keep_audit(self, node: str, audit: dict[str, object]) -> wire.Audit:
        """audit: `began_at` and `rows`; takes the place of the last one."""
        return cast("wire.Audit", self._call("PUT", _path(node), audit))

    def kernel_tables(self, node: str) -> wire.Operation:
        """The operation whose result has `tables`: entries in use, the most there may be, and each sliver's limit."""
        return operation_in(self._call("POST", f"/nodes/{segment('NODE', node)}/tables", {}))


def _path(node: str) -> str:
    return f"/nodes/{segment('NODE', node)}/audit"

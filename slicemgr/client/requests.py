"""Requests for slices beyond a quota, which an admin or PI grants or declines."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Requests(OldList, Resource):
    def list(self, **filters: str | None) -> builtins.list[wire.Request]:
        """The requests, newest first. filters: state, project, user, since, until."""
        return pages(self._connection.get, "/requests", "requests", filters)

    def get(self, id: str) -> wire.Request:
        return cast("wire.Request", self._connection.call("GET", _path(id)))

    def grant(self, id: str, *, reason: str = "", **changes: object) -> wire.Created:
        """Grant a request. Returns `{"request", "operation", "slice"}`. changes: count, ports, lease or a limit;
        of a request to resize: disk.
        """
        body = {"reason": reason, "changes": changes}
        return cast("wire.Created", self._connection.call("POST", f"{_path(id)}/grant", body))

    def decline(self, id: str, reason: str) -> wire.Request:
        return cast("wire.Request", self._connection.call("POST", f"{_path(id)}/decline", {"reason": reason}))

    def withdraw(self, id: str) -> wire.Request:
        return cast("wire.Request", self._connection.call("POST", f"{_path(id)}/withdraw", {}))


def _path(id: str) -> str:
    return f"/requests/{segment('ID', id)}"

"""Snapshots of slices."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import items, of_slice, operation_in, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Snapshots(OldList, Resource):
    def list(self, slice: str) -> builtins.list[wire.Snapshot]:
        """The snapshots of a slice, newest first."""
        return items(self._connection.call("GET", self._all(slice)), "snapshots")

    def get(self, slice: str, snapshot: str) -> wire.Snapshot:
        return cast("wire.Snapshot", self._connection.call("GET", self._path(slice, snapshot)))

    def create(self, slice: str, snapshot: str) -> wire.Operation:
        return operation_in(self._connection.call("POST", self._all(slice), {"name": snapshot}))

    def restore(self, slice: str, snapshot: str) -> wire.Operation:
        """Restore a snapshot. The present content of the slice is lost."""
        return operation_in(self._connection.call("POST", self._path(slice, snapshot, "/restore"), {}))

    def delete(self, slice: str, snapshot: str) -> wire.Operation:
        return operation_in(self._connection.call("DELETE", self._path(slice, snapshot)))

    def clone(self, slice: str, snapshot: str, name: str, **wishes: object) -> wire.Created:
        """Create a new slice from a snapshot. wishes: lease, disk, ssh_keys."""
        body = {"name": name, **wishes}
        return cast("wire.Created", self._connection.call("POST", self._path(slice, snapshot, "/clone"), body))

    def _all(self, slice: str, what: str = "") -> str:
        return of_slice(slice, self._connection.project, f"/snapshots{what}")

    def _path(self, slice: str, snapshot: str, what: str = "") -> str:
        return self._all(slice, f"/{segment('SNAPSHOT', snapshot)}{what}")

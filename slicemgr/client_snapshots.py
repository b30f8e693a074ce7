"""The client's methods about snapshots: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from slicemgr.client_json import items, operation_in, query, segment

if TYPE_CHECKING:
    from slicemgr import wire


class Snapshots:
    """`_call` and `project` are the client's."""

    project: str | None

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _snapshots(self, slice: str, what: str = "") -> str:
        return f"/slices/{segment('NAME', slice)}/snapshots{what}" + query({"project": self.project})

    def _snapshot(self, slice: str, snapshot: str, what: str = "") -> str:
        return self._snapshots(slice, f"/{segment('SNAPSHOT', snapshot)}{what}")

    def snapshots(self, slice: str) -> list[wire.Snapshot]:
        """The newest first."""
        return items(self._call("GET", self._snapshots(slice)), "snapshots")

    def snapshot(self, slice: str, snapshot: str) -> wire.Snapshot:
        return cast("wire.Snapshot", self._call("GET", self._snapshot(slice, snapshot)))

    def create_snapshot(self, slice: str, snapshot: str) -> wire.Operation:
        return operation_in(self._call("POST", self._snapshots(slice), {"name": snapshot}))

    def restore_snapshot(self, slice: str, snapshot: str) -> wire.Operation:
        """What the slice has now is given up."""
        return operation_in(self._call("POST", self._snapshot(slice, snapshot, "/restore"), {}))

    def delete_snapshot(self, slice: str, snapshot: str) -> wire.Operation:
        return operation_in(self._call("DELETE", self._snapshot(slice, snapshot)))

    def clone_snapshot(self, slice: str, snapshot: str, name: str, **wishes: object) -> wire.Created:
        """A new slice. wishes: lease, disk, ssh_keys."""
        body = {"name": name, **wishes}
        return cast("wire.Created", self._call("POST", self._snapshot(slice, snapshot, "/clone"), body))

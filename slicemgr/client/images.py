"""Images."""

from __future__ import annotations

import builtins
from typing import IO, TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import items, operation_in, pages, query, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr import wire


class Images(OldList, Resource):
    """Images. name: the name of an image, its sha256, or a unique prefix of the sha256."""

    def list(self, **filters: str | None) -> builtins.list[wire.Image]:
        """The images. filters: state, project, prefix (of the name)."""
        return pages(self._connection.get, "/images", "images", filters)

    def get(self, name: str) -> wire.Image:
        return cast("wire.Image", self._connection.call("GET", _path(name)))

    def upload(
        self,
        file: IO[bytes],
        size: int,
        *,
        name: str,
        format: str,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> wire.Imported:
        """Upload `size` bytes of `file`. Returns `{"image"}`, with an `"operation"` unless the image already exists.

        on_progress: called with (bytes sent, size). Raises Refused if the file is shorter than `size`.
        """
        path = "/images" + query({"name": name, "format": format, "project": self._connection.project})
        return cast("wire.Imported", self._connection.upload(path, file, size, on_progress))

    def publish(self, name: str) -> wire.Image:
        """Allow all projects to use an image of one project."""
        return cast("wire.Image", self._connection.call("POST", _path(name, "/publish"), {}))

    def nodes(self, name: str) -> builtins.list[wire.ImageOnNode]:
        """What each node has of an image. Nodes that have nothing of it are not among them."""
        return items(self._connection.call("GET", _path(name, "/nodes")), "nodes")

    def kernel_config(self, name: str) -> str:
        """The configuration of the kernel in an image. Raises Refused if none is known."""
        status, payload = self._connection.exchange("GET", _path(name, "/kernel-config"))
        if status >= 300:
            self._connection.answer(status, payload)  # raises the error of the service
        return payload.decode("ascii", errors="replace")

    def push(self, name: str, node: str) -> wire.Operation:
        """Have an image on a node before a sliver needs it (admins)."""
        return operation_in(self._connection.call("POST", _path(name, "/push"), {"node": node}))

    def delete(self, name: str) -> wire.Operation:
        return operation_in(self._connection.call("DELETE", _path(name)))


def _path(name: str, what: str = "") -> str:
    return f"/images/{segment('NAME', name)}{what}"

"""Nodes: their state, their checks, and measurements on the node itself."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, TypedDict, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import operation_in, pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Required

    from slicemgr import wire


class IoRequest(TypedDict, total=False):
    """A disk measurement. root: snapshot, overlay, copy. image: sha256. what: sqlite, files. size: bytes or files."""

    root: Required[str]
    image: Required[str]
    what: Required[str]
    size: Required[int]
    seed: int


class SysbenchRequest(TypedDict, total=False):
    """test: cpu, threads, memory, fileio. seconds: 0 for the default of the test. size: bytes of files of `fileio`."""

    test: Required[str]
    seconds: int
    size: int
    seed: int


class MemoryRequest(TypedDict, total=False):
    """bytes: to hold. before, hold, after: seconds. controller: on, observe, off; "" for the setting of the node.

    locked: whether the bytes cannot be moved to swap. swap: whether the kernel may move memory of slivers there by
    itself meanwhile.
    """

    bytes: Required[int]
    before: int
    hold: int
    after: int
    controller: str
    locked: bool
    swap: bool


class Nodes(OldList, Resource):
    def list(self) -> builtins.list[wire.Node]:
        return pages(self._connection.get, "/nodes", "nodes", {})

    def get(self, name: str) -> wire.Node:
        return cast("wire.Node", self._connection.call("GET", f"/nodes/{segment('NODE', name)}"))

    def add(self, name: str, site: str = "") -> wire.AddedNode:
        """Add a node. `command` is for its host, as root, once and within an hour; only this answer has it."""
        body = {"name": name, **({"site": site} if site else {})}
        return cast("wire.AddedNode", self._connection.call("POST", "/nodes", body))

    def remove(self, name: str) -> None:
        """Remove a node without slivers, and revoke its certificate."""
        self._connection.call("DELETE", f"/nodes/{segment('NODE', name)}")

    def rename(self, name: str, new: str) -> wire.Node:
        path = f"/nodes/{segment('NODE', name)}/rename"
        return cast("wire.Node", self._connection.call("POST", path, {"name": new}))

    def drain(self, name: str) -> wire.Node:
        """Place no new slivers on the node."""
        return cast("wire.Node", self._connection.call("POST", f"/nodes/{segment('NODE', name)}/drain", {}))

    def undrain(self, name: str) -> wire.Node:
        """Place new slivers on the node again."""
        return cast("wire.Node", self._connection.call("POST", f"/nodes/{segment('NODE', name)}/undrain", {}))

    def resync(self, name: str) -> wire.Node:
        """Have the hub send a node all its rows again. `resync_at` is null when the node has them."""
        return cast("wire.Node", self._connection.call("POST", f"/nodes/{segment('NODE', name)}/resync", {}))

    def evacuate(self, name: str, *, lost: bool = False) -> wire.Evacuation:
        """Make the slivers of a lost node again from their images, on other nodes. lost: it does not return."""
        body = {"lost": True} if lost else {}
        return cast("wire.Evacuation", self._connection.call("POST", f"/nodes/{segment('NODE', name)}/evacuate", body))

    def doctor(self, node: str) -> wire.Operation:
        """Start the checks of a node. The result of the operation has `checks`."""
        return self._ask(node, "doctor", {})

    def gc(self, node: str, *, apply: bool = False) -> wire.Operation:
        """Find objects of slicemgr without an owner, the `items` of the operation's result. apply: remove them."""
        return self._ask(node, "gc", {"apply": apply})

    def kernel_tables(self, node: str) -> wire.Operation:
        """Read kernel tables. The operation's result has `tables`: used entries, their limit, and that per sliver."""
        return self._ask(node, "tables", {})

    def baseline(self, node: str, request: wire.BaselineRequest) -> wire.Operation:
        """Measure the raw baseline. The result of the operation has the times of the same work without slicemgr."""
        return self._ask(node, "baseline", request)

    def measure_io(self, node: str, request: IoRequest) -> wire.Operation:
        """Measure the disk. The operation's result has `measured`: seconds of make, read, write, sync; or `missing`."""
        return self._ask(node, "io", request)

    def measure_sysbench(self, node: str, request: SysbenchRequest) -> wire.Operation:
        """Run sysbench. The operation's result has `measured`: the numbers of one test; or `missing`."""
        return self._ask(node, "sysbench", request)

    def measure_memory(self, node: str, request: MemoryRequest) -> wire.Operation:
        """Hold memory of the node. The result has `measured`: what was available, free, taken; `cpu`, `kernel`."""
        return self._ask(node, "memory", request)

    def _ask(self, node: str, what: str, body: Mapping[str, object]) -> wire.Operation:
        return operation_in(self._connection.call("POST", f"/nodes/{segment('NODE', node)}/{what}", dict(body)))

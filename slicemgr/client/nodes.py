"""Nodes: their state, their checks, and what is measured on a node itself."""

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
    """root: snapshot, overlay, copy. image: sha256. what: sqlite, files. size: bytes, or number of files."""

    root: Required[str]
    image: Required[str]
    what: Required[str]
    size: Required[int]
    seed: int


class SysbenchRequest(TypedDict, total=False):
    """test: cpu, threads, memory, fileio. seconds: 0 as its table has it. size: bytes of the files of `fileio`."""

    test: Required[str]
    seconds: int
    size: int
    seed: int


class Nodes(OldList, Resource):
    def list(self) -> builtins.list[wire.Node]:
        return pages(self._connection.get, "/nodes", "nodes", {})

    def get(self, name: str) -> wire.Node:
        return cast("wire.Node", self._connection.call("GET", f"/nodes/{segment('NODE', name)}"))

    def doctor(self, node: str) -> wire.Operation:
        """The operation whose result has `checks`."""
        return self._ask(node, "doctor", {})

    def gc(self, node: str, *, apply: bool = False) -> wire.Operation:
        """The operation whose result has `items`: objects of slicemgr that belong to nothing; apply: remove them."""
        return self._ask(node, "gc", {"apply": apply})

    def kernel_tables(self, node: str) -> wire.Operation:
        """The operation whose result has `tables`: entries in use, the most there may be, and each sliver's limit."""
        return self._ask(node, "tables", {})

    def baseline(self, node: str, request: wire.BaselineRequest) -> wire.Operation:
        """The operation whose result has the raw times of the same work."""
        return self._ask(node, "baseline", request)

    def measure_io(self, node: str, request: IoRequest) -> wire.Operation:
        """The operation whose result has `measured`: seconds of make, read, write, sync; or what is `missing`."""
        return self._ask(node, "io", request)

    def measure_sysbench(self, node: str, request: SysbenchRequest) -> wire.Operation:
        """The operation whose result has `measured`: the numbers of one test; or what is `missing`."""
        return self._ask(node, "sysbench", request)

    def _ask(self, node: str, what: str, body: Mapping[str, object]) -> wire.Operation:
        return operation_in(self._connection.call("POST", f"/nodes/{segment('NODE', node)}/{what}", dict(body)))

"""The client's methods that measure something on a node itself: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from slicemgr.client_json import operation_in, segment

if TYPE_CHECKING:
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


class Measures:
    """`_call` is the client's."""

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def measure_io(self, node: str, request: IoRequest) -> wire.Operation:
        """The operation whose result has `measured`: seconds of make, read, write, sync; or what is `missing`."""
        return operation_in(self._call("POST", f"/nodes/{segment('NODE', node)}/io", dict(request)))

    def measure_sysbench(self, node: str, request: SysbenchRequest) -> wire.Operation:
        """The operation whose result has `measured`: the numbers of one test; or what is `missing`."""
        return operation_in(self._call("POST", f"/nodes/{segment('NODE', node)}/sysbench", dict(request)))

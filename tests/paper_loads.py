"""A simulated testbed whose node also measures, with numbers that follow simple laws; slivers run on this host."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import canned_service as canned
from canned_service import Answer, Request, problem
from paper_testbed import PaperTestbed

from slicemgr import wire
from slicemgr.bench.frame.load_hosts import Way
from slicemgr.client import Client

# The output of sysbench 1.0.20 without its heading and latencies.
CPU = """\
CPU speed:
    events per second:   865.15

General statistics:
    total time:                          1.0120s
    total number of events:              876
"""
MEMORY = """\
Total operations: 2854420 (2823543.02 per second)

2787.52 MiB transferred (2757.37 MiB/sec)

General statistics:
    total time:                          1.0096s
    total number of events:              2854420
"""
FILES = """\
File operations:
    reads/s:                      26721.61
    writes/s:                     17812.77
    fsyncs/s:                     58940.06

Throughput:
    read, MiB/s:                  417.53
    written, MiB/s:               278.32

General statistics:
    total time:                          1.0144s
    total number of events:              102973
"""
SHA = "ab" * 32
IMAGE = {
    "name": "debian-12",
    "sha256": SHA,
    "format": "qcow2",
    "virtual_size": 3 << 30,
    "os": "Debian",
    "arch": "x86_64",
}


class PaperLoads(PaperTestbed):
    """types: the types that the node runs. missing: the reports of the agent, by root or by the host of sysbench."""

    def __init__(self) -> None:
        super().__init__()
        self.types = {"lxc": True, "kvm": True}
        self.missing: dict[str, str] = {}
        self.broken = ""
        self.measured: list[dict[str, Any]] = []
        self.holds = 0  # the number of the measurement from which operations of the node run until `ends` is set
        self.ends = threading.Event()
        self.left: list[dict[str, Any]] = []  # operations that still run
        self.on("GET /images/debian-12", IMAGE)
        self.on("GET /images/no-such-image", problem(404, "not_found", "there is no image 'no-such-image'"))
        self.on("GET /operations", self._operations)
        self.on("POST /nodes/node1/io", lambda request: self._measure("io", request))
        self.on("POST /nodes/node1/sysbench", lambda request: self._measure("sysbench", request))

    def _node(self) -> dict[str, Any]:
        node = super()._node()
        reasons = {one: f"{one} is not for paper" for one, able in self.types.items() if not able}
        node["facts"].update(kinds=self.types, kinds_reason=reasons)
        return node

    def _create(self, request: Request) -> Answer:
        answer = super()._create(request)
        if answer.status == 202:
            self.on(f"GET /slices/{request.body['name']}", answer.body["slice"])
        return answer

    def _operations(self, request: Request) -> Answer:
        wanted = (request.query.get("kind"), request.query.get("state"))
        return Answer(200, {"operations": [one for one in self.left if (one["kind"], one["state"]) == wanted]})

    def _measure(self, kind: str, request: Request) -> Answer:
        body = request.body
        self.measured.append({"kind": kind, **body})
        name = f"node-{len(self.measured)}"
        where = body.get("root", "host")
        found: dict[str, Any] = {"missing": self.missing[where]} if where in self.missing else _numbers(kind, body)
        state = "failed" if self.broken else "done"
        ended = canned.operation(state, id=name, kind=kind, slice=None, result={"measured": found})
        ended["error"] = self.broken or None

        held = 0 < self.holds <= len(self.measured)
        going = {**ended, "state": "running", "result": None}
        self.left.append(going)

        def look(_: Request) -> Answer:
            if held:
                self.ends.wait(60)
            self.left = [one for one in self.left if one is not going]
            return Answer(200, ended)

        self.on(f"GET /operations/{name}", look)
        return Answer(202, {"operation": going})


def _numbers(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    if kind == "io":
        factor = {"snapshot": 1.0, "overlay": 2.0, "copy": 1.1}[body["root"]]
        each = body["size"] * factor
        return {"make": factor, "read": each / 1e7, "write": each / 1e6, "sync": 0.1, "version": "3.40.1"}
    return {
        "cpu": {"seconds": 10.0, "events": 5000, "events_per_second": 500.0},
        "threads": {"seconds": 20.0, "events": 90000},
        "memory": {"seconds": 20.0, "operations": 80_000_000, "mib_per_second": 4000.0},
        "fileio": {"seconds": 10.0, "events": 60000, "read": 100.0, "written": 66.0},
    }[body["test"]] | {"version": "1.0.20"}


def here(testbed: PaperLoads, directory: Path, prefix: str = "bench-x-") -> Way:
    """Slivers whose programs run on this host, in a separate directory."""

    def login(_name: str, _sliver: wire.Sliver, identity: Path) -> list[str]:
        assert identity.read_bytes() == b"private" and identity.stat().st_mode & 0o777 == 0o600
        return ["sh", "-c"]

    request: wire.SliceRequest = {"image": "debian-12", "memory": "2G", "disk": "8G", "cpu": 2.0}
    requests: dict[str, wire.SliceRequest] = {"lxc": {**request}, "kvm": {**request, "boot": "direct"}}
    key = ("ssh-ed25519 public", b"private")
    return Way(lambda: Client(testbed.url, "admin"), "node1", key, login, prefix, requests, str(directory / "inside"))

"""A simulated testbed: it answers as a service whose slivers run at once, and their ports send an ssh banner.

Programs "inside" a sliver run on this host, so the second port of each sliver is a free port of this host.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from types import TracebackType
from typing import Any, Self

import canned_service as canned
from canned_service import Answer, Canned, Request, problem

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
RAW = {"started": [0.03, 0.04], "spoke": [], "answered": [0.05, 0.06], "create": 0.1, "delete": 0.01}
STEPS = (("root", 0.01, 0.02), ("identity", 0.03, 0.01), ("domain", 0.05, 0.06), ("ssh", 0.12, 0.03))


def free_port() -> int:
    """A port at which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def steps(done: bool = True) -> list[dict[str, Any]]:
    """The steps of a creation."""
    step = {"sliver": "abcdefgh-0", "state": "done" if done else "running", "detail": "", "percent": None}
    return [{**step, "name": name, "began": began, "seconds": took if done else None} for name, began, took in STEPS]


class _Banner(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-paper\r\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class PaperTestbed(Canned):
    """room: number of slivers that start; later ones fail. slow: seconds of a creation. each: bytes per sliver."""

    def __init__(self, *, room: int = 10_000, slow: float = 0.0, each: int = 5 * MIB, ports: int = 10_000) -> None:
        super().__init__()
        self.room, self.slow, self.each, self.ports = room, slow, each, ports
        self.there: dict[str, dict[str, Any]] = {}
        self.most = 0
        self.looks = 0
        self.uncleaned = 0  # MiB of the pool that the cleaner has not freed, reduced by one at each query
        self.load = 0.5
        self.spares = True  # whether the node has a spare for any slice
        self.stuck = False  # whether deletions fail
        self.deaf: set[str] = set()  # slices whose port does not answer
        self.under_way = 0  # creations without an answer yet
        self._lock = threading.Lock()
        self._banner = _Server(("127.0.0.1", 0), _Banner)
        self._thread_of_banner = threading.Thread(target=self._banner.serve_forever, args=(0.01,), daemon=True)
        self.on("GET /slices", self._list)
        self.on("POST /slices", self._create)
        self.on("GET /nodes", lambda _: Answer(200, {"nodes": [self._node()]}))
        self.on("GET /nodes/node1", lambda _: Answer(200, self._node()))
        self.on("GET /operations", {"operations": []})
        self.on("GET /images/debian-12", {"name": "debian-12", "sha256": "ab" * 32})
        self.baseline = canned.operation("done", id="raw", kind="baseline", result={"baseline": RAW})
        self.on("POST /nodes/node1/baseline", lambda _: Answer(202, {"operation": self.baseline}))
        self.on("GET /operations/raw", lambda _: Answer(200, self.baseline))

    def __enter__(self) -> Self:
        self._thread_of_banner.start()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._banner.shutdown()
        self._thread_of_banner.join()
        self._banner.server_close()

    def _node(self) -> dict[str, Any]:
        with self._lock:
            self.looks += 1
            self.uncleaned = max(0, self.uncleaned - 1)
            uncleaned = self.uncleaned * MIB
            count = len(self.there)
        facts = {
            "memory": 16 * GIB,
            "memory_available": 12 * GIB - count * self.each,
            "swap_total": 0,
            "swap_free": 0,
            "disk_total": 100 * GIB,
            "disk_used": 10 * GIB + count * 280 * KIB + uncleaned,
            "disk_free": 90 * GIB,
            "pids": 300 + 3 * count,
            "pids_max": 32768,
            "load": self.load,
            "cpus": 2,
            "kernel": "6.18.0",
            "cpu_model": "paper",
        }
        sums = {"memory_limits": 0, "disk_limits": 0, "ports": 20 * count, "addresses": count}
        capacity = {"memory": 16 * GIB, "disk": 100 * GIB, "cpus": 2, "ports": self.ports}
        return {
            "name": "node1",
            "address": "127.0.0.1",
            "agent_seen_at": f"2026-11-21T10:00:00.{self.looks:06}Z",
            "facts": facts,
            "capacity": capacity,
            "used": {"slivers": count, "spares": 8, **sums},
        }

    def _list(self, request: Request) -> Answer:
        prefix = request.query.get("prefix", "")
        with self._lock:
            return Answer(200, {"slices": [one for name, one in self.there.items() if name.startswith(prefix)]})

    def _create(self, request: Request) -> Answer:
        name = request.body["name"]
        port = 1 if name in self.deaf else self._banner.server_address[1]
        ssh, second = {"host": "127.0.0.1", "port": port, "host_key": canned.HOST_KEY}, free_port()
        usage = {"memory": self.each, "disk": 130 * KIB}
        sliver = canned.sliver(
            ssh=ssh, usage=usage, ports={"first": second - 1, "last": second - 2 + request.body.get("ports", 20)}
        )
        made = canned.slice(name, slivers=[sliver])
        made["warm"] = self.spares and request.body.get("warm", True)
        if request.body.get("dry_run"):
            return Answer(200, {"plan": made})
        with self._lock:
            self.under_way += 1
        time.sleep(self.slow)
        with self._lock:
            self.under_way -= 1
            if name in self.there:
                return problem(409, "conflict", f"there is a slice {name}")
            self.there[name] = made
            self.most = max(self.most, len(self.there))
            fits = len(self.there) <= self.room
        ended = canned.operation("done" if fits else "failed", id=f"op-{name}", slice=name, steps=steps())
        if not fits:
            ended.update(error="the node has no memory left", hint="delete some")
        self.on(f"DELETE /slices/{name}", self._delete)
        self.on(f"GET /slices/{name}", made)
        self.on(f"GET /operations/op-{name}", ended)
        return Answer(202, {"operation": {**ended, "state": "running"}, "slice": made})

    def _delete(self, request: Request) -> Answer:
        name = request.path.rpartition("/")[2]
        with self._lock:
            found = self.there.get(name) if self.stuck else self.there.pop(name, None)
        if found is None:
            return problem(404, "not_found", f"no slice {name}")
        ended = canned.operation("failed" if self.stuck else "done", id=f"del-{name}", slice=name)
        ended["error"] = "the agent is stuck" if self.stuck else None
        self.on(f"GET /operations/del-{name}", ended)
        return Answer(202, {"operation": ended})

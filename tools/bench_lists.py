"""Measure the times and the numbers of queries of REST lists, and the requests per second of the service.

    tools/bench_lists.py [--slices 20 200 1000] [--slivers 1] [--seconds 3] [--clients 4] [--postgresql]

The slivers run and have been sampled. A list is measured after a change to the database, which makes the service read
it again, and (`same`) without one. Server times are medians of the CPU time of a request to the application itself,
without a network, so that other load of the host does not count. Requests per second are measured over real sockets to
gunicorn as `slicemgr web` starts it, in turns with a bare Flask route of the same process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from postgres_server import Server

import slicemgr.store
from slicemgr.config import Config, NodeConfig, StoreConfig, WebConfig
from slicemgr.model import GIB, Phase
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.slices import slices
from slicemgr.store import Store, pending, schema, tables
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app, server

API = "/api/v1"
TOKEN = "bench"
LISTS = ("slices?limit=1000", "slices?limit=500", "slices", "operations", "events", "images", "projects", "users")
ROUNDS = 15
_BETWEEN = 0.005  # seconds
_FACTS = {"cpus": 4, "memory": 64 * GIB, "disk_total": 512 * GIB, "kinds": {"lxc": True, "kvm": False}}


@contextlib.contextmanager
def service(folder: Path, port: int, url: str) -> Iterator[tuple[Config, Store]]:
    """A service with an announced node, a ready image, and the token of the admin. url: of the database; "": SQLite."""
    node = NodeConfig(state_dir=folder / "state", run_dir=folder / "run", pool=folder / "pool")
    config = Config(node=node, web=WebConfig(port=port, user="65534:65534"), store=StoreConfig(url=url))
    schema.upgrade(config.store_url)
    with slicemgr.store.open(config) as store:
        now = utcnow()
        image = {"sha256": "ab" * 32, "name": "debian-12", "format": "qcow2", "virtual_size": 1, "file_size": 1}
        image |= {"arch": "x86_64", "boot": {}, "os": "Debian 12", "state": "ready", "created_at": now}
        with store.write() as c:
            pending.record(c, [pending.NodeSeen("node1", "192.0.2.1", _FACTS)], "node1")
            c.execute(tables.images.insert().values(**image))
            row = {"hash": authentication.digest(TOKEN), "user": schema.ADMIN, "id": "bench", "label": "bench"}
            c.execute(tables.tokens.insert().values(**row, created_at=now))
        yield config, store


def fill(config: Config, store: Store, first: int, last: int, slivers: int) -> None:
    """Create slices, each with its operation and event."""
    admin = Principal(schema.ADMIN, True)
    wish = {"type": "lxc", "image": "debian-12", "ssh_keys": [_key()], "ports": 1, "memory": "16M", "disk": "16M"}
    wish |= {"count": slivers}
    for number in range(first, last):
        body = {"name": f"exp-{number:05}", "project": "default", **wish}
        slices.create(store, config, slices.Draft(body), admin)
    s = tables.slivers.c
    key = sa.literal(_key()[:-6]) + sa.cast(100_000 + s.serial % 900_000, sa.Text)
    sampled = {"usage_working": 10**7, "usage_charged": 2 * 10**7, "usage_disk": 10**6, "usage_at": 1_790_000_000}
    with store.write() as c:
        c.execute(tables.slivers.update().values(phase=Phase.RUNNING, host_key=key, **sampled))


def _key() -> str:
    return "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U"


def change(store: Store) -> None:
    """Change a row that no list shows."""
    with store.write() as c:
        c.execute(tables.users.update().values(known_browsers=tables.users.c.known_browsers + 1))


def measure(client: Any, store: Store, path: str) -> tuple[float, float, int, int]:
    """Milliseconds of CPU time (medians) after a change and without one, number of queries, and KiB of one list."""
    times: dict[bool, list[float]] = {True: [], False: []}
    queries = read = 0

    def note(*_: Any) -> None:
        nonlocal queries
        queries += 1

    sa.event.listen(store.engine, "before_cursor_execute", note)
    for changed in (True, False) * ROUNDS:
        if changed:
            change(store)
        queries, began = 0, time.thread_time()
        answer = client.get(f"{API}/{path}")
        times[changed].append((time.thread_time() - began) * 1000)
        assert answer.status_code == 200, answer.text
        read = queries if changed else read
    sa.event.remove(store.engine, "before_cursor_execute", note)
    return statistics.median(times[True]), statistics.median(times[False]), read, len(answer.data) >> 10


class _WithBare(server._Server):
    """The service with a route that does nothing."""

    def load(self) -> Any:
        app = super().load()
        app.add_url_rule("/bare", view_func=lambda: {"slices": []})
        return app


@contextlib.contextmanager
def serving(config: Config) -> Iterator[None]:
    child = os.fork()
    if child == 0:
        try:
            server.drop_root(config)
            _WithBare(config).run()
        finally:
            os._exit(0)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((config.web.host, config.web.port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


@contextlib.contextmanager
def changing(store: Store) -> Iterator[None]:
    """Change the database every few milliseconds."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_BETWEEN):
            change(store)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rate(port: int, path: str, seconds: float, clients: int, *, known: bool = False) -> float:
    """Requests per second over `clients` persistent connections. known: clients send the tag of the answer."""
    counts = [0] * clients
    end = time.monotonic() + seconds

    def one(index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        while time.monotonic() < end:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (200, 304), answer.status
            if known:
                headers["If-None-Match"] = answer.headers["ETag"]
            counts[index] += 1
        connection.close()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slices", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--slivers", type=int, default=1, help="of each slice")
    parser.add_argument("--postgresql", action="store_true", help="on a private server, not on SQLite")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement of requests a second")
    parser.add_argument("--clients", type=int, default=4, help="connections at once")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        url = stack.enter_context(Server()).url() if given.postgresql else ""
        config, store = stack.enter_context(service(folder, port, url))
        measure_lists(config, store, sorted(given.slices), given.slivers)
        server.make_directories(config)
        with serving(config):
            measure_rates(port, store, given.seconds, given.clients)
    return 0


def measure_lists(config: Config, store: Store, counts: list[int], slivers: int) -> None:
    client = create_app(config, store).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    gc.collect()
    gc.freeze()  # as the service does when it starts
    print(f"{'list':<20}{'slices':>8}{'ms':>10}{'same':>8}{'queries':>9}{'KiB':>8}")
    there = 0
    for count in counts:
        fill(config, store, there, count, slivers)
        there = count
        for path in LISTS:
            took, same, queries, size = measure(client, store, path)
            print(f"{path:<20}{count:>8}{took:>10.1f}{same:>8.1f}{queries:>9}{size:>8}", flush=True)


def measure_rates(port: int, store: Store, seconds: float, clients: int) -> None:
    slices = f"{API}/slices"
    compare(port, f"{API}/slices?limit=1", seconds, clients)
    compare(port, slices, seconds, clients)
    compare(port, slices, seconds, clients, known=True)
    with changing(store):
        compare(port, slices, seconds, clients, "while the database changes")
    compare(port, f"{API}/events", seconds, clients)


def compare(port: int, path: str, seconds: float, clients: int, how: str = "", *, known: bool = False) -> None:
    """Print the rate of a path and of the bare route, in turns."""
    pairs = [(rate(port, "/bare", seconds, clients), rate(port, path, seconds, clients, known=known)) for _ in range(3)]
    bare, own = (statistics.median(side) for side in zip(*pairs, strict=True))
    how = "with If-None-Match" if known else how
    print(f"{path} {how}: {own:.0f} requests/s, bare Flask route {bare:.0f}/s: {own / bare:.2f} of it", flush=True)


if __name__ == "__main__":
    sys.exit(main())

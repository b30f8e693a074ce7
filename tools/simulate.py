"""Simulate a testbed of many nodes on this machine, and compare what its centre does with the aims for it.

    tools/simulate.py [--nodes 1000] [--links 50] [--slivers 1000000] [--ports 20] [--minutes 10] [--kept FOLDER]
                      [--report FILE]

PostgreSQL, RabbitMQ, `slicemgr hub`, the service and placement are real. LINKS nodes have the real link and a real
mirror, with a converger that needs no time; the others only speak the protocol. Nothing uses a network but loopback.
The figures are those of this machine with all its nodes on it: compare them with one another, and with the aims.
To write the rows takes minutes: with `--kept` the next run finds them in FOLDER.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import simulated_nodes
import simulated_report
import simulated_rows
import sqlalchemy as sa
from broker_server import HOST, MANAGEMENT, PORT, Broker
from postgres_server import Server
from simulated_report import Aim, Aims, say

import slicemgr.store
from slicemgr.config import Config, HubConfig, NodeConfig, StoreConfig
from slicemgr.errors import Refused
from slicemgr.hub import broker_files, signer
from slicemgr.policy import broker as policy
from slicemgr.policy import placement
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.slices import slices
from slicemgr.store import schema
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app

SETTINGS = (
    *("shared_buffers=512MB", "autovacuum=on", "max_wal_size=4GB", "maintenance_work_mem=256MB"),
    *("wal_level=minimal", "max_wal_senders=0", "shared_preload_libraries=pg_stat_statements"),
)
ADMIN = Principal(schema.ADMIN, True)
TOKEN = "simulate"
PATIENCE = 1800.0  # seconds for anything that must happen
LISTS = ("/api/v1/slices?limit=100", "/api/v1/slices?limit=100&project=p00000", "/api/v1/nodes?limit=100")
_TICKS = os.sysconf("SC_CLK_TCK")
_INSIDE = "SLICEMGR_SIMULATION"  # set in the network of the simulation
_PROCESSES = 4  # with the nodes that only speak the protocol


@dataclass
class Crowd:
    """The processes with the nodes, and the last line that each has said."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    last: dict[int, dict[str, int]] = field(default_factory=dict)

    def start(self, kind: str, folder: Path, first: int, last: int) -> None:
        words = [sys.executable, str(Path(__file__).parent / "simulated_nodes.py"), kind, str(folder)]
        with (folder / f"{kind}{first}.log").open("ab") as log:
            made = subprocess.Popen(
                [*words, str(first), str(last)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.processes.append(made)
        threading.Thread(target=self._read, args=(made,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.last[process.pid] = json.loads(line)

    def count(self, what: str) -> int:
        return sum(one.get(what, 0) for one in list(self.last.values()))

    def vanish(self, count: int) -> None:
        """End `count` nodes, so many of each process with nodes of the protocol as it takes."""
        each = -(-count // len(self.processes))
        for one in self.processes:
            assert one.stdin is not None
            one.stdin.write(f"vanish {min(each, count)}\n")
            one.stdin.flush()
            count -= min(each, count)

    def end(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait()


class Centre:
    """The centre of a testbed: rows, broker, hub."""

    def __init__(self, folder: Path, options: argparse.Namespace, url: str) -> None:
        self.folder, self.options = folder, options
        node = NodeConfig(name="centre", state_dir=folder / "s", run_dir=folder / "r", pool=folder / "p")
        hub = HubConfig(broker=f"{HOST}:{PORT}", management=f"{HOST}:{MANAGEMENT}")
        self.config = Config(node=node, hub=hub, store=StoreConfig(url=url))
        for directory in (node.state_dir, node.run_dir, self.config.uploads_dir, self.config.experiments_dir):
            directory.mkdir(parents=True, exist_ok=True)
        schema.upgrade(url)
        self.store = slicemgr.store.open(self.config)
        with self.store.write() as c:
            row = {"hash": authentication.digest(TOKEN), "user": schema.ADMIN, "id": "simulate", "label": "simulate"}
            c.execute(t.tokens.insert().values(**row, created_at=utcnow()))
        self.settings = folder / "centre.toml"
        self.settings.write_text(
            f'node = {{ name = "centre", state_dir = "{node.state_dir}", run_dir = "{node.run_dir}" }}\n'
            f'hub = {{ broker = "{HOST}:{PORT}", management = "{HOST}:{MANAGEMENT}" }}\n'
            f"store.url = {json.dumps(url)}\n"
        )

    @contextlib.contextmanager
    def hub(self) -> Iterator[subprocess.Popen[bytes]]:
        words = [sys.executable, "-c", "from slicemgr.main import main; main()", "--config", str(self.settings), "hub"]
        with (self.folder / "hub.log").open("ab") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            process.wait()

    def log(self) -> str:
        return (self.folder / "hub.log").read_text()[-2000:]


def prepare(options: argparse.Namespace, postgres: Server) -> str:
    """A database with the rows of the testbed; its URL."""
    if not postgres.sql("SELECT 1 FROM pg_roles WHERE rolname = 'slicemgr'"):
        postgres.sql("CREATE ROLE slicemgr LOGIN PASSWORD '" + postgres.password + "'")
    filled = f"filled_{options.nodes}_{options.slivers}_{options.ports}"
    began = time.monotonic()
    if not postgres.sql(f"SELECT 1 FROM pg_database WHERE datname = '{filled}'"):
        postgres.sql("DROP DATABASE IF EXISTS new")
        postgres.sql("CREATE DATABASE new OWNER slicemgr")
        schema.upgrade(postgres.url("new", "slicemgr"))
        simulated_rows.fill(postgres.url("new"), options.nodes, options.slivers, options.ports)
        postgres.sql(f"ALTER DATABASE new RENAME TO {filled}")
    if options.kept:
        postgres.sql("DROP DATABASE IF EXISTS simulated")
        postgres.sql(f"CREATE DATABASE simulated TEMPLATE {filled} OWNER slicemgr STRATEGY FILE_COPY")
        postgres.sql("UPDATE nodes SET agent_seen_at = now() AT TIME ZONE 'utc'", "simulated")
    else:
        postgres.sql(f"ALTER DATABASE {filled} RENAME TO simulated")
    postgres.sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements", "simulated")
    say(
        f"{options.slivers} slivers on {options.nodes} nodes are in the database after {time.monotonic() - began:.0f} s"
    )
    return postgres.url("simulated", "slicemgr")


def seconds_until(check: Callable[[], object], what: str, patience: float = PATIENCE) -> float:
    """How long it took. Prints what is still missing now and then."""
    began = said = time.monotonic()
    while not check():
        now = time.monotonic()
        if now - began > patience:
            raise TimeoutError(what)
        if now - said > 20:
            said = now
            say(f"waiting: {what} ({check()})")
        time.sleep(0.2)
    return time.monotonic() - began


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def timed(work: Callable[[int], object], count: int) -> list[float]:
    """Milliseconds of each call."""
    found = []
    for number in range(count):
        began = time.monotonic()
        work(number)
        found.append((time.monotonic() - began) * 1000)
    return found


def lists(centre: Centre) -> Aim:
    client = create_app(centre.config, centre.store).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    gc.collect()
    gc.freeze()  # as the service does when it starts
    aim, notes = Aim("list page (slowest of the lists, median)", 50, "ms"), []
    for path in LISTS:

        def get(_: int, path: str = path) -> None:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text

        get(0)
        used = time.process_time()
        median = statistics.median(timed(get, 15))
        used = (time.process_time() - used) / 15 * 1000
        notes.append(f"{path} {median:.0f} ms, {used:.0f} ms of processor time of the service")
        aim.figure = max(aim.figure or 0.0, median)
    aim.note = f"({'; '.join(notes)})"
    return aim


def placed(centre: Centre, count: int) -> list[Aim]:
    """Slices of one sliver, and of ten."""
    store, config = centre.store, centre.config
    wish = {"type": "lxc", "image": simulated_rows.IMAGE, "ssh_keys": [simulated_rows.KEY], "ports": 20}
    wish |= {"memory": "16M", "disk": "16M"}

    def create(number: int, slivers: int = 1) -> None:
        body = {"name": f"new-{slivers}-{number:05}", "project": "default", "count": slivers, **wish}
        slices.create(store, config, slices.Draft(body), ADMIN)

    create(-1)
    found = [Aim("placement and rows of a slice of one sliver, p95", 100, "ms")]
    one = timed(create, count)
    found[0].figure, found[0].note = quantile(one, 0.95), f"(median {statistics.median(one):.1f} ms)"
    ten = timed(lambda number: create(number, 10), max(5, count // 5))
    note = f"(median {statistics.median(ten):.1f} ms)"
    found.append(Aim("the same for ten slivers on ten nodes, p95", 100, "ms", quantile(ten, 0.95), note))
    return found


def work_on_links(centre: Centre, count: int) -> Aim:
    """Create on nodes with a real link until the operation has ended."""
    o = t.operations.c
    names = ",".join(simulated_rows.name(one) for one in range(centre.options.links))
    wish = {"type": "lxc", "image": simulated_rows.IMAGE, "ssh_keys": [simulated_rows.KEY], "ports": 20}
    wish |= {"memory": "16M", "disk": "16M", "node": names, "project": "default"}
    found: list[float] = []
    for number in range(count):
        began = time.monotonic()
        draft = slices.Draft({"name": f"far-{number:05}", **wish})
        made = slices.create(centre.store, centre.config, draft, ADMIN).operation

        def ended(made: str = made) -> bool:
            with centre.store.read() as c:
                return c.scalar(sa.select(o.state).where(o.id == made)) == "done"

        while not ended():
            if time.monotonic() - began > 120:
                raise TimeoutError(centre.log())
            time.sleep(0.02)
        found.append((time.monotonic() - began) * 1000)
    note = f"(p95 {quantile(found, 0.95):.0f} ms)"
    return Aim("create on a node with a real link, until it ended, p50", 1000, "ms", statistics.median(found), note)


def asked(broker: Broker, path: str) -> Any:
    status, found = broker.call("GET", path)
    if status != 200:
        raise TimeoutError(f"the broker does not answer: status {status}")
    return found


def in_queues(broker: Broker) -> int:
    """Messages in all queues. A list of the queues would cost the broker more than the nodes do."""
    return int(asked(broker, "/overview?columns=queue_totals")["queue_totals"].get("messages", 0))


def memory(broker: Broker) -> str:
    """What the broker uses of the memory beyond which it takes no messages."""
    one = asked(broker, "/nodes?columns=mem_used,mem_limit,mem_alarm")[0]
    refuses = ", and takes no messages" if one["mem_alarm"] else ""
    return f"uses {one['mem_used'] >> 20} of {one['mem_limit'] >> 20} MiB{refuses}"


def watched(centre: Centre, broker: Broker, hub: int, minutes: float) -> list[Aim]:
    """The processor time of the idle hub, and whether queues grow."""
    began, used, sums = time.monotonic(), cpu(hub), []
    said, said_used = began, used
    while time.monotonic() - began < minutes * 60:
        time.sleep(5)
        sums.append(in_queues(broker))
        if (now := time.monotonic()) - said >= 30:
            cores = (cpu(hub) - said_used) / (now - said)
            say(f"the hub uses {cores:.2f} cores; messages in queues: {sums[-6:]}; the broker {memory(broker)}")
            said, said_used = now, cpu(hub)
    cores = (cpu(hub) - used) / (time.monotonic() - began)
    third = max(1, len(sums) // 3)
    growth = statistics.mean(sums[-third:]) - statistics.mean(sums[:third])
    most = 0.02 * centre.options.nodes
    return [
        Aim("idle hub", 0.3, "cores", cores, f"({centre.options.nodes / 10:.0f} beats a second)"),
        Aim(f"growth of all queues in {minutes:g} minutes", most, "msgs", growth, f"(at most {max(sums)} at a time)"),
    ]


def reconnected(crowd: Crowd, broker: Broker) -> Aim:
    """The broker is killed and started again: all nodes come back at the same time."""
    broker.stop()
    time.sleep(3)
    began = time.monotonic()
    broker.start()
    up = time.monotonic() - began
    crowd.last.clear()
    time.sleep(3)
    seconds_until(lambda: known(crowd), "all nodes are back")
    total = time.monotonic() - began
    return Aim("all nodes reconnect in step", 120, "s", total - up, f"(after {up:.0f} s of the broker's own start)")


def known(crowd: Crowd) -> bool:
    return 0 < crowd.count("nodes") == crowd.count("acknowledged") and len(crowd.last) == len(crowd.processes)


def vanished(centre: Centre, crowd: Crowd, count: int) -> Aim:
    """Nodes end without a word: how long until placement does without them."""
    n = t.nodes.c

    def silent() -> int:
        with centre.store.read() as c:
            old = sa.or_(n.silent_since.is_not(None), n.agent_seen_at < utcnow() - placement.SILENT)
            return int(c.scalar(sa.select(sa.func.count()).where(old)) or 0)

    before = silent()
    crowd.vanish(count)
    took = seconds_until(lambda: silent() - before >= count, f"{count} nodes are silent")
    return Aim(f"{count} vanished nodes get no slivers", 40, "s", took)


def simulate(options: argparse.Namespace, folder: Path, postgres: Server, aims: Aims) -> None:
    centre = Centre(folder, options, prepare(options, postgres))
    authority = signer.prepare(centre.store, centre.config.authority_dir)
    simulated_nodes.make_template(folder)
    for number in range(options.nodes):
        identity = simulated_rows.identity(number)
        broker_files.write_client(authority, folder / identity, identity)
    crowd, add = Crowd(), aims.add
    with Broker(authority, own_network=False) as broker, contextlib.ExitStack() as stack:
        broker_files.write_client(authority, centre.config.hub_dir, policy.HUB, broker.password)
        stack.callback(crowd.end)
        hub = stack.enter_context(centre.hub())
        if options.links:
            crowd.start("link", folder, 0, options.links)
        step = -(-(options.nodes - options.links) // _PROCESSES)
        for first in range(options.links, options.nodes, step):
            crowd.start("protocol", folder, first, min(first + step, options.nodes))
        took = seconds_until(lambda: known(crowd), "all nodes are known")
        add(
            Aim(
                "all nodes connect for the first time", 300, "s", took, f"(hub: {cpu(hub.pid):.0f} s of processor time)"
            )
        )
        took = seconds_until(lambda: crowd.count("mirrored") == options.nodes, "all mirrors have their rows")
        add(Aim("then all mirrors have their rows", 600, "s", took, f"(hub: {cpu(hub.pid):.0f} s of processor time)"))
        add(*watched(centre, broker, hub.pid, options.minutes))
        add(lists(centre))
        add(*placed(centre, options.creates))
        if options.links:
            add(work_on_links(centre, options.creates))
        add(reconnected(crowd, broker))
        add(vanished(centre, crowd, options.nodes // 10))


def _in_own_network() -> None:
    """Start this program again in a network that has nothing but loopback."""
    if os.environ.get(_INSIDE) is None:
        words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, _INSIDE: "1"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--links", type=int, default=50, help="nodes with the real link")
    parser.add_argument("--slivers", type=int, default=1_000_000)
    parser.add_argument("--ports", type=int, default=20, help="of each sliver")
    parser.add_argument("--minutes", type=float, default=10, help="for which the idle hub is watched")
    parser.add_argument("--creates", type=int, default=50, help="slices to create for the times of placement")
    parser.add_argument("--kept", type=Path, help="folder in which the filled database stays; with a short path")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--report", type=Path, help="file for a table of the figures, in Markdown")
    options = parser.parse_args()
    _in_own_network()
    began, load, aims = time.monotonic(), os.getloadavg()[0], Aims()
    failed = ""
    with (
        tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as name,
        Server(*SETTINGS, kept=options.kept) as postgres,
    ):
        folder = Path(name)
        folder.chmod(0o711)
        try:
            simulate(options, folder, postgres, aims)
        except (TimeoutError, Refused) as error:
            log = folder / "hub.log"
            failed = f"not finished: {error}"
            print(f"{error}\n{log.read_text()[-3000:] if log.exists() else ''}")
        slow = simulated_report.slowest(postgres)
    table = simulated_report.table(aims.found, slow, options, (time.monotonic() - began) / 60, load, failed)
    print(table)
    if options.report:
        options.report.write_text(table)
    if options.json:
        given = {key: value for key, value in vars(options).items() if key != "json"}
        found = [{"what": one.what, "figure": one.figure, "unit": one.unit, "most": one.most} for one in aims.found]
        options.json.write_text(json.dumps({"options": given, "aims": found}, indent=2, default=str) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

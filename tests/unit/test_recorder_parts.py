"""The input of the recorder in the kernel's formats. A hanging libvirt or a missing store costs only single values."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import Service

from slicemgr import names
from slicemgr.agent.chores.recorder import MachineStatistics, Recorder
from slicemgr.agent.chores.runner import Runner
from slicemgr.drivers.kernel import cgroup, counters
from slicemgr.drivers.kernel.counters import Counts, Groups, Link
from slicemgr.drivers.libvirt import processes
from slicemgr.drivers.network import conntrack
from slicemgr.drivers.storage.btrfs import QuotaMode, Space
from slicemgr.record.sampler import Sampler
from slicemgr.service.views import events as event_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import StoreError, samples, tables
from slicemgr.store.updates import utcnow

SLIVER = "abcdefgh-0"
NET_DEV = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
smabcdefgh-0: 1000 10 0 0 0 0 0 0    2000      20    0    0    0     0       0          0
smiabcdefgh-0:  7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0
"""
STAT_V1 = (
    "cache 1\nrss 2\ninactive_file 3\ntotal_cache 4096\ntotal_swap 512\ntotal_inactive_file 1024\n"
    "total_workingset_refault_anon 1\ntotal_workingset_refault_file 2\n"
)
V1 = {
    "memory": {
        "memory.stat": STAT_V1,
        "memory.usage_in_bytes": "10240\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    },
    "cpuacct": {"cpuacct.usage": "2500000000\n"},
    "pids": {"pids.current": "7\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 200\n7:0 Read 1\nTotal 301\n",
        "blkio.throttle.io_serviced_recursive": "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
    },
}
V2 = {
    "memory.stat": "anon 1\nfile 4096\ninactive_file 1024\nactive_file 5\n"
    "workingset_refault_anon 1\nworkingset_refault_file 2\n",
    "memory.current": "10240\n",
    "memory.swap.current": "512\n",
    "memory.events": "low 0\nhigh 5\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
    "pids.current": "7\n",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.pressure": "some avg10=0.00 avg60=0.12 avg300=0.00 total=4321\nfull avg10=0.00 total=7\n",
    "io.stat": "8:0 rbytes=100 wbytes=200 rios=3 wios=4 dbytes=0 dios=0\n254:0 rbytes=1 wbytes=0 rios=0 wios=0\n",
}
WANTED = Counts(10240, 9216, 6144, 512, 7, 2.5, 101, 200, 3, 4, 2, 3 * 4096)


def test_links_are_told_from_the_slivers_side() -> None:
    assert counters.links(NET_DEV) == {SLIVER: Link(2000, 20, 1000, 10)}
    assert SLIVER not in counters.links(), "and what is there now can be read"


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_groups_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: written(tmp_path / name / names.domain(SLIVER), files) for name, files in V1.items()}
    monkeypatch.setattr(cgroup, "version", lambda: "v1")
    monkeypatch.setattr(cgroup, "group_of", lambda pid, controller: places[controller])
    monkeypatch.setattr(cgroup, "pids_group_v1", lambda domain: tmp_path / "pids" / domain)
    groups = Groups()
    assert groups.read({SLIVER: 5}) == {SLIVER: WANTED}
    (places["memory"] / "memory.stat").unlink()
    assert groups.read({SLIVER: 5}) == {}, "what ends just now is left out"


def test_groups_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = f"machine-lxc\\x2d5\\x2d{names.domain(SLIVER).replace('-', chr(92) + 'x2d')}.scope"
    place = written(tmp_path / scope / "libvirt", V2)
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    monkeypatch.setattr(cgroup, "group_of", lambda pid, controller: place)
    wanted = replace(WANTED, pressure=4321)
    assert Groups().read({SLIVER: 5}) == {SLIVER: wanted}
    (place / "pids.current").rename(place.parent / "pids.current")
    assert Groups().read({SLIVER: 5}) == {SLIVER: wanted}, "systemd's scope counts processes"
    (place / "memory.pressure").unlink()
    assert Groups().read({SLIVER: 5}) == {SLIVER: WANTED}, "a kernel that does not count it"


def test_a_process_that_is_not_the_domain_is_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of an ended process, whose ID another process has now."""
    assert Groups().read({SLIVER: os.getpid()}) == {}
    monkeypatch.setattr(processes, "LXC_DIR", tmp_path)
    (tmp_path / f"{names.domain(SLIVER)}.pid").write_text("12")
    (tmp_path / f"{names.domain(SLIVER)}.xml").write_text("")
    (tmp_path / "stranger.pid").write_text("13")
    assert counters.running()[SLIVER] == 12 and len(counters.running()) == 1


def test_the_node_itself() -> None:
    first = counters.machine()
    assert 0 < first.memory < first.memory_total and first.cpu > 0 and first.pids > 1
    age = counters.age(os.getpid())
    assert age is not None and 0 <= age < 86400 and counters.age(2**22 + 1) is None


def test_connections_by_address() -> None:
    assert conntrack.count([b"\xc0\x00\x02\x7b"]) == {b"\xc0\x00\x02\x7b": 0}


class FakePool:
    """Quota groups 1/1 and 1/2, as a pool would report; the real one is in the tests of the box."""

    def charges(self) -> dict[int, tuple[int, int]]:
        return {names.qgroup(1): (300, 100), names.qgroup(2): (400, 200)}

    def space(self) -> Space:
        return Space(1000, 400, 600)

    def quota_mode(self) -> QuotaMode:
        return QuotaMode.SIMPLE


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Two slivers whose domains are this process, and their groups the files of V1."""
    with Service(tmp_path / "service") as made:
        made.create(count=2)
        made.config.node.run_dir.mkdir(exist_ok=True)
        notes = tmp_path / "notes"
        notes.mkdir()
        for row in made.rows():
            (notes / f"{names.domain(row.sliver.id)}.pid").write_text(str(os.getpid()))
        shared = {name: written(tmp_path / "cgroup" / name, files) for name, files in V1.items()}
        monkeypatch.setattr(processes, "LXC_DIR", notes)
        monkeypatch.setattr(cgroup, "version", lambda: "v1")
        monkeypatch.setattr(counters._Files, "__init__", _open_files(shared))
        yield made


def _open_files(shared: dict[str, Path]) -> Any:
    def init(self: Any, sliver: str, pid: int, version: str) -> None:
        self._unified = False
        self._directories = {name: str(path) for name, path in shared.items()}

    return init


def set_cpu(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "cgroup" / "cpuacct" / "cpuacct.usage").write_text(f"{int(seconds * 1e9)}\n")


def recorder(service: Service, ask: Any = dict) -> Recorder:
    return Recorder(service.config, service.store, FakePool(), ask, {})  # type: ignore[arg-type]


def cpu_rows(service: Service) -> list[float]:
    with service.store.read() as c:
        serials = [one.serial for one in samples.slivers(c, "node1")][:1]
        return [round(row.cpu, 3) for row in samples.of_slivers(c, serials, 0, 0, 1 << 40)]


def test_a_look_becomes_rows(service: Service, tmp_path: Path) -> None:
    made = recorder(service)
    made.record(1000)
    set_cpu(tmp_path, 4.0)
    made.record(1030)
    assert cpu_rows(service) == [0.0, 1.5], "the first look counts nothing of before"
    with service.store.read() as c:
        rows = samples.at(c, "node1", 1030)
        (_, node) = samples.of_node(c, "node1", 0, 0, 2000)
    assert [(row.disk, row.referenced, row.working, row.pids) for row in rows] == [
        (100, 300, 9216, 7),
        (200, 400, 9216, 7),
    ]
    assert (node.lxc, node.kvm, node.disk, node.disk_total) == (2, 0, 400, 1000)


def test_a_second_sample_in_the_same_second_loses_nothing(service: Service, tmp_path: Path) -> None:
    """Its increments are in the next sample, and an out-of-memory kill is counted once."""
    made = recorder(service)
    made.record(1000)
    set_cpu(tmp_path, 4.0)
    (tmp_path / "cgroup" / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    made.record(1000)
    assert (cpu_rows(service), oom_events(service)) == ([0.0], [])
    made.record(1001)
    assert cpu_rows(service) == [0.0, 1.5]
    assert kill_rows(service) == [(1, True)] * 2 and len(oom_events(service)) == 2


def kill_rows(service: Service) -> list[tuple[int, bool]]:
    s = tables.slivers.c
    with service.store.read() as c:
        query = sa.select(s.oom_kills, s.oom_at).order_by(s.serial)
        return [(row.oom_kills, row.oom_at is not None) for row in c.execute(query)]


def oom_events(service: Service) -> list[str]:
    with service.store.read() as c:
        return [one["detail"] for one in event_views.events(c, slice="exp") if one["action"] == "out of memory"]


def test_killed_processes_are_counted_and_noted_once_an_hour(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "cgroup" / "memory" / "memory.oom_control"

    def kill(count: int) -> None:
        file.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")

    made = recorder(service)
    made.record(1000)
    assert kill_rows(service) == [(0, False)] * 2 and oom_events(service) == [], "nothing of before is counted"
    kill(3)
    made.record(1030)
    assert kill_rows(service) == [(1, True)] * 2
    text = "the kernel killed 1 process at the memory limit of 512 MiB since the sliver was created"
    assert sorted(oom_events(service)) == [f"sliver 0: {text}", f"sliver 1: {text}"]
    for second in range(1060, 4600, 30):  # a tenant that is killed with each sample
        kill(second)
        made.record(second)
    assert len(oom_events(service)) == 2
    kill(9000)
    made.record(1030 + 3600)
    assert kill_rows(service) == [(8998, True)] * 2
    assert len(oom_events(service)) == 4 and "killed 8998 processes" in oom_events(service)[0]
    with service.store.read() as c:
        sliver = slice_views.slice(c, "exp")["slivers"][0]
    assert (sliver["oom_kills"], sliver["oom_at"]) == (8998, "1970-01-01T01:17:10Z")


def test_a_kernel_without_the_counter(service: Service, tmp_path: Path) -> None:
    (tmp_path / "cgroup" / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    made = recorder(service)
    made.record(1000)
    made.record(1030)
    assert kill_rows(service) == [(0, False)] * 2


def usage_rows(service: Service) -> list[tuple[Any, ...]]:
    s = tables.slivers.c
    with service.store.read() as c:
        query = sa.select(s.usage_working, s.usage_charged, s.usage_disk, s.guest_memory, s.usage_at)
        return [tuple(row) for row in c.execute(query.order_by(s.serial))]


def test_usage_is_the_latest_sample(service: Service) -> None:
    """Of memory by its two names; a clone's disk with what it began as."""
    assert usage_rows(service) == [(None,) * 5] * 2
    with service.store.write() as c:
        c.execute(tables.slivers.update().where(tables.slivers.c.serial == 2).values(inherited=50))
    made = recorder(service)
    made.record(1000)
    assert usage_rows(service) == [(9216, 10240, 100, None, 1000), (9216, 10240, 250, None, 1000)]
    with service.store.read() as c:
        assert [(row.working, row.charged, row.disk) for row in samples.at(c, "node1", 1000)] == [
            (9216, 10240, 100),
            (9216, 10240, 200),
        ]
        shown = slice_views.slice_of(c, service.rows()[0].sliver.id.rpartition("-")[0])["slivers"][0]["usage"]
    both = {"memory": 9216, "working": 9216, "charged": 10240, "disk": 100, "guest_memory": None}
    assert shown == {**both, "at": "1970-01-01T00:16:40Z"}


def test_what_has_stopped_uses_no_memory(service: Service, tmp_path: Path) -> None:
    made = recorder(service)
    made.record(1000)
    for note in (tmp_path / "notes").iterdir():
        note.unlink()
    made.record(1030)
    assert usage_rows(service)[0] == (None, None, 100, None, 1030)


def test_full_quotas_count_snapshots_beside_a_sliver(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePool, "quota_mode", lambda _: QuotaMode.FULL)
    monkeypatch.setattr(FakePool, "subvolume_id", lambda _, __: names.qgroup(1), raising=False)
    with service.store.write() as c:
        now = utcnow()
        slice_, sliver = service.rows()[0].sliver.id.rpartition("-")[0], service.rows()[0].sliver.id
        row = {"id": "1", "slice": slice_, "name": "before", "user": "admin", "created_at": now}
        c.execute(tables.snapshots.insert().values(**row))
        c.execute(tables.sliver_snapshots.insert().values(snapshot="1", sliver=sliver, made_at=now, size=7))
    recorder(service).record(1000)
    assert usage_rows(service)[0][2] == 107


def test_an_agent_that_starts_again_goes_on_where_it_was(service: Service, tmp_path: Path) -> None:
    recorder(service).record(1000)
    set_cpu(tmp_path, 10.0)
    recorder(service).record(1600)
    assert cpu_rows(service) == [0.0, 7.5]


def test_without_its_memory_it_begins_at_nothing(service: Service, tmp_path: Path) -> None:
    """The control of the one before."""
    recorder(service).record(1000)
    (service.config.node.run_dir / "recorder.json").write_text("not json")
    set_cpu(tmp_path, 10.0)
    recorder(service).record(1600)
    assert cpu_rows(service) == [0.0, 0.0]


def test_what_could_not_be_written_comes_with_the_next(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorder(service)
    made.record(1000)
    set_cpu(tmp_path, 4.0)

    def away(*_: object) -> None:
        raise StoreError("the database is away", "wait")

    with monkeypatch.context() as broken:
        broken.setattr(samples, "write", away)
        with pytest.raises(StoreError):
            made.record(1030)
    set_cpu(tmp_path, 5.0)
    made.record(1060)
    assert cpu_rows(service) == [0.0, 2.5]


def test_a_libvirt_that_hangs_delays_no_look() -> None:
    released, asked = threading.Event(), threading.Event()

    def ask() -> dict[str, dict[str, int]]:
        asked.set()
        released.wait(60)
        return {SLIVER: {"balloon.available": 3, "balloon.usable": 1}}

    machines = MachineStatistics(ask)
    assert machines.ask(True) == {}
    assert asked.wait(60)
    before = threading.active_count()
    assert [machines.ask(True) for _ in range(20)] == [{}] * 20
    assert threading.active_count() == before, "one question at a time"
    released.set()
    deadline = time.monotonic() + 60
    while not (known := machines.ask(True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert SLIVER in known


def test_what_libvirt_tells_late_is_counted_once(service: Service, tmp_path: Path) -> None:
    """A machine's disk counter is reported, then missing, then reported again."""
    with service.store.write() as c:
        c.exec_driver_sql("UPDATE slices SET kind = 'kvm'")
    sampler = Sampler(service.config, FakePool(), tmp_path / "memory.json", {})  # type: ignore[arg-type]
    with service.store.read() as c:
        known = samples.slivers(c, "node1")
    written_bytes = []
    for at, value in enumerate((1000, None, 1500, 1600)):
        stats = {} if value is None else {known[0].id: {"block.count": 1, "block.0.wr.bytes": value}}
        parts = sampler.sample(at, known, stats).slivers
        sampler.keep()
        written_bytes.append(parts[0]["io_written"])
    assert written_bytes == [0, 0, 500, 100]


def test_what_the_node_took_is_counted_in_the_life_of_the_sliver(service: Service, tmp_path: Path) -> None:
    """The node goes on counting while the recorder is restarted; another process is another life."""
    taken: dict[str, tuple[int, int]] = {}
    with service.store.read() as c:
        known = samples.slivers(c, "node1")
    name, counted = known[0].id, []
    pid = counters.running()[name]
    for at, now in enumerate(((pid, 100), (pid, 100), (pid, 250), (pid + 1, 70), (pid, 300))):
        sampler = Sampler(service.config, FakePool(), tmp_path / "memory.json", taken)  # type: ignore[arg-type]
        taken[name] = now
        counted.append(sampler.sample(at, known, {}).slivers[0]["reclaimed"])
        sampler.keep()
    assert counted == [0, 0, 150, 0, 300]


@pytest.mark.parametrize("text", ["some avg10=0.00 total=5000\n", "", "none"])
def test_the_pressure_of_the_node_is_its_own(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Not the sum of the slivers', which may wait at the same time. A kernel without it has 0."""
    file = tmp_path / "pressure"
    file.write_text(text.replace("5000", "2000"))
    reads = counters.pressure
    monkeypatch.setattr(counters, "pressure", lambda path=file: reads(path))
    sampler = Sampler(service.config, FakePool(), tmp_path / "memory.json", {})  # type: ignore[arg-type]
    with service.store.read() as c:
        known = samples.slivers(c, "node1")
    sampler.sample(0, known, {})
    sampler.keep()
    file.write_text(text)
    assert sampler.sample(1, known, {}).whole["pressure"] == (3000 if "total" in text else 0)


def test_the_thread_records_until_it_is_stopped(service: Service) -> None:
    with Runner([recorder(service).chore()]):
        deadline = time.monotonic() + 60
        while not cpu_rows(service):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert not any(thread.name == "recorder" for thread in threading.enumerate())

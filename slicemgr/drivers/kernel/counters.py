"""The kernel's counters of running slivers, read from files alone, without libvirt and without other programs.

libvirt's pid files show which slivers run. Units are bytes, seconds and counts since the domain started.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slicemgr import names
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt import processes as bodies
from slicemgr.errors import Failed

LINKS = Path("/proc/self/net/dev")  # all links of this network namespace in one read
_LARGEST = 65536  # bytes, the largest file of these that is read
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one running sliver; None for those that its kernel does not provide.

    charged: all memory that its group is charged for. working: without what the kernel can drop at once. guest: used
    memory as a container shows it. cpu: seconds. oom_kills: processes that the kernel killed at the memory limit.
    reread: bytes of memory that were read again after the kernel had taken them. pressure: see `pressure`.
    """

    charged: int | None = None
    working: int | None = None
    guest: int | None = None
    swap: int | None = None
    pids: int | None = None
    cpu: float | None = None
    io_read: int | None = None
    io_written: int | None = None
    io_reads: int | None = None
    io_writes: int | None = None
    oom_kills: int | None = None
    reread: int | None = None
    pressure: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes and packets on a sliver's link. in: towards the sliver."""

    net_in: int
    net_in_packets: int
    net_out: int
    net_out_packets: int


def running(*directories: Path) -> dict[str, int]:
    """The main process of each domain of slicemgr with a pid file, by sliver. The process may have ended.

    directories: of pid files; by default those of containers and of virtual machines.
    """
    found = {}
    for directory in directories or (bodies.LXC_DIR, bodies.QEMU_DIR):
        for sliver, note in bodies.noted(directory):
            with suppress(OSError, ValueError):
                found[sliver] = int(read_file(note))
    return found


def age(pid: int) -> float | None:
    """Seconds since the process started; None if it has ended."""
    try:
        fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / _TICKS)


def links(text: bytes | None = None) -> dict[str, Link]:
    """The slivers' links, with in and out swapped. text: in the format of /proc/net/dev, its current one by default."""
    found = {}
    for line in (LINKS.read_bytes() if text is None else text).splitlines()[2:]:
        name, _, counts = line.partition(b":")
        sliver = names.sliver_of_link(name.strip().decode())
        if sliver is not None:
            numbers = counts.split()
            found[sliver] = Link(int(numbers[8]), int(numbers[9]), int(numbers[0]), int(numbers[1]))
    return found


class Groups:
    """Reads cgroups by file names that are looked up once per domain."""

    def __init__(self) -> None:
        self._version = cgroup.version()
        self._known: dict[tuple[str, int], _Files] = {}

    def read(self, running: Mapping[str, int]) -> dict[str, Counts]:
        """The counters of each sliver, without those whose group no longer exists."""
        counts = {}
        for one in running.items():
            files = self._known.get(one)
            if files is None:
                with suppress(Failed):
                    files = self._known[one] = _Files(*one, self._version)
            if files is not None and (read := files.read()) is not None:
                counts[one[0]] = read
        for gone in self._known.keys() - running.items():
            del self._known[gone]
        return counts


class _Files:
    """The files of a domain's own groups."""

    def __init__(self, sliver: str, pid: int, version: str) -> None:
        self._unified = version == "v2"
        self._directories = {}
        for controller in ("memory",) if self._unified else ("memory", "cpuacct", "blkio"):
            directory = cgroup.own_group(sliver, pid, controller)
            if directory is not None:
                self._directories[controller] = str(directory)
        processes = cgroup.pids_group_v1(names.domain(sliver))
        if processes is not None and processes.is_dir():
            self._directories["pids"] = str(processes)
        if "memory" not in self._directories:
            raise Failed(f"process {pid} is not the domain of {sliver}")

    def read(self) -> Counts | None:
        try:
            return self._read_v2() if self._unified else self._read_v1()
        except (OSError, ValueError):  # it is ending
            return None

    def _read_v1(self) -> Counts:
        at = self._directories
        stat = read_file(f"{at['memory']}/memory.stat")
        charged = int(read_file(f"{at['memory']}/memory.usage_in_bytes"))
        cpu = int(read_file(f"{at['cpuacct']}/cpuacct.usage")) / 1e9 if "cpuacct" in at else None
        pids = int(read_file(f"{at['pids']}/pids.current")) if "pids" in at else None
        size: tuple[int | None, int | None] = (None, None)
        count = size
        if "blkio" in at:
            size, count = (
                parse_blkio(read_file(f"{at['blkio']}/blkio.throttle.{one}_recursive"))
                for one in ("io_service_bytes", "io_serviced")
            )
        return Counts(
            charged,
            max(0, charged - value_in(stat, b"total_inactive_file")),
            max(0, charged - value_in(stat, b"total_cache")),
            value_in(stat, b"total_swap"),
            pids,
            cpu,
            *(size[0], size[1], count[0], count[1]),
            _killed(f"{at['memory']}/memory.oom_control"),
            reread(stat, b"total_"),
        )

    def _read_v2(self) -> Counts:
        at = self._directories["memory"]
        stat = read_file(f"{at}/memory.stat")
        charged = int(read_file(f"{at}/memory.current"))
        return Counts(
            charged,
            max(0, charged - value_in(stat, b"inactive_file")),
            max(0, charged - value_in(stat, b"file")),
            _optional(f"{at}/memory.swap.current"),
            _optional(f"{at}/pids.current", f"{at}/../pids.current"),
            value_in(read_file(f"{at}/cpu.stat"), b"usage_usec") / 1e6,
            *parse_io_stat(_first(f"{at}/io.stat", f"{at}/../io.stat") or b""),
            _killed(f"{at}/memory.events"),
            reread(stat),
            pressure(f"{at}/memory.pressure"),
        )


def parse_blkio(text: bytes) -> tuple[int, int]:
    """Reads and writes of all devices from a `blkio.throttle.*` file (v1)."""
    sums = {b"Read": 0, b"Write": 0}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in sums:
            sums[words[1]] += int(words[2])
    return sums[b"Read"], sums[b"Write"]


def parse_io_stat(text: bytes) -> tuple[int, int, int, int]:
    """Bytes read and written, and reads and writes, of all devices from `io.stat` (v2)."""
    sums = {b"rbytes": 0, b"wbytes": 0, b"rios": 0, b"wios": 0}
    for word in text.split():
        name, _, value = word.partition(b"=")
        if name in sums:
            sums[name] += int(value)
    return sums[b"rbytes"], sums[b"wbytes"], sums[b"rios"], sums[b"wios"]


def reread(stat: bytes, prefix: bytes = b"") -> int:
    """Bytes that a group has read again after the kernel took them, from its memory.stat. prefix: of the names."""
    kinds = (b"file", b"anon")
    return mmap.PAGESIZE * sum(value_in(stat, prefix + b"workingset_refault_" + kind) for kind in kinds)


def pressure(path: str = "/proc/pressure/memory") -> int | None:
    """Microseconds in which a program waited for memory; None if the kernel does not count it."""
    try:
        line = read_file(path).partition(b"\n")[0]
        return int(line.rpartition(b" total=")[2]) if line.startswith(b"some ") else None
    except (OSError, ValueError):  # reading the file fails where the kernel was started without it
        return None


def value_in(text: bytes, name: bytes) -> int:
    """The number in a line `name number`; 0 if there is no such line."""
    start = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if start == 0 and not text.startswith(name + b" "):
        return 0
    return int(text[start + len(name) + 1 : text.find(b"\n", start)])


def read_file(path: str | Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LARGEST)
    finally:
        os.close(descriptor)


def _first(*paths: str) -> bytes | None:
    for path in paths:
        with suppress(FileNotFoundError):
            return read_file(path)
    return None


def _optional(*paths: str) -> int | None:
    text = _first(*paths)
    return None if text is None else int(text)


def _killed(path: str) -> int | None:
    """The counter `oom_kill` of memory.oom_control (v1, Linux 4.13 or later) or memory.events (v2)."""
    text = _first(path)
    return None if text is None or b"\noom_kill " not in text else value_in(text, b"oom_kill")


def _lines(path: str) -> Iterator[list[str]]:
    for line in Path(path).read_text().splitlines():
        yield line.split()


@dataclass(frozen=True, slots=True)
class Machine:
    """The node itself. cpu: seconds of work of all cores since boot."""

    memory: int
    memory_total: int
    swap: int
    swap_total: int
    cpu: float
    load: float
    pids: int


def meminfo() -> dict[str, int]:
    """The values of /proc/meminfo in bytes; counts of huge pages are among them, multiplied likewise."""
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in _lines("/proc/meminfo")}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. total: that the node has. available: what programs could get without swapping, free or page cache. free:
    the part of it that holds nothing. swap, swap_total: free and all swap.
    """

    total: int
    available: int
    free: int
    swap: int = 0
    swap_total: int = 0


def memory(root: Path | None = None) -> Memory:
    """The memory of the node: the machine's, or less if the group in which the node runs has a limit.

    root: the directory of that group; None: the group at which the hierarchy is mounted.
    """
    info = meminfo()
    whole = Memory(info["MemTotal"], info["MemAvailable"], info["MemFree"], info["SwapFree"], info["SwapTotal"])
    limited = _of_group(root or Path("/sys/fs/cgroup"))
    if limited is None or limited.total >= whole.total:
        return whole
    available, free = min(whole.available, limited.available), min(whole.free, limited.free)
    return Memory(limited.total, available, free, whole.swap, whole.swap_total)


def zswap(parameter: str = "/sys/module/zswap/parameters/enabled") -> bool:
    """Whether the kernel compresses what it moves to swap, and keeps that in memory while it can."""
    try:
        return read_file(parameter).strip() == b"Y"
    except OSError:
        return False


def _of_group(root: Path) -> Memory | None:
    """The memory of a group; None if it has no limit, as the group of a whole machine."""
    for limit, usage, place, prefix in (
        ("memory.max", "memory.current", root, b""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", root / "memory", b"total_"),
    ):
        try:
            total, used = int(read_file(place / limit)), int(read_file(place / usage))
            stat = read_file(place / "memory.stat")
        except (OSError, ValueError):  # no such group, or `max`
            continue
        free = max(0, total - used)
        files = value_in(stat, prefix + b"inactive_file") + value_in(stat, prefix + b"active_file")
        return Memory(total, min(total, free + files), free)
    return None


def machine() -> Machine:
    """The counters of the node. Used memory is what is not available without swapping."""
    of_node = memory()
    # user, nice, system, irq, softirq and steal; guest time is part of user.
    ticks = [int(one) for one in next(_lines("/proc/stat"))[1:9]]
    load = Path("/proc/loadavg").read_text().split()
    return Machine(
        of_node.total - of_node.available,
        of_node.total,
        of_node.swap_total - of_node.swap,
        of_node.swap_total,
        (sum(ticks) - ticks[3] - ticks[4]) / _TICKS,
        float(load[0]),
        int(load[3].partition("/")[2]),
    )

"""The checks inside a container and their verdicts on the `name<TAB>value` lines of the probe. Pure.

The first group follows the rows of table 3 of the CoreLab paper, the others the threat model of the project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slicemgr.audit.row import Row

MIB = 1 << 20
Values = Mapping[str, Sequence[str]]
Verdict = tuple[str, bool]

FAMILIES = frozenset({1, 2, 10, 16, 17})  # unix, inet, inet6, netlink, packet
REFUSED = frozenset(
    {"EPERM", "EACCES", "ENOSYS", "ENOSPC", "EAFNOSUPPORT", "ENOTTY", "EROFS", "ENOENT", "ENXIO", "ENOMEM"}
)
LARGEST_RING = 64 * MIB
CAPTURE_RING = 2 * MIB
_ONE_WRITE = {"v1": 128 << 10, "v2": 64 << 10}  # by cgroup version: bytes that a socket may use beyond the limit
# Writable settings that are harmless to others: those of the sliver's network namespace and of its processes.
WRITABLE = ("/proc/sys/net/", "/proc/self/", "/proc/thread-self/")
_CGROUPS = "/sys/fs/cgroup"  # shown to an image's systemd: its own subtree, whose limits must not be writable
_DELEGATED = frozenset(f"{_CGROUPS}/cgroup.{name}" for name in ("procs", "threads", "subtree_control"))


@dataclass(frozen=True, slots=True)
class Target:
    """The limits of the sliver, in bytes, numbers and CPU cores.

    cgroup: the version on the node, v1 or v2. init: of a container, minimal or systemd.
    """

    name: str
    memory: int
    disk: int
    pids: int
    cpu: float
    terminals: int
    capabilities: int
    cgroup: str = "v2"
    init: str = "minimal"
    directory: str = "/root"


@dataclass(frozen=True, slots=True)
class Check:
    """A check. words: the arguments of the probe. expected: a text for the report. timeout: seconds."""

    row: str
    expected: str
    words: Callable[[Target], Sequence[object]]
    judge: Callable[[Values, Target], Verdict]
    timeout: float = 60.0


def one(values: Values, name: str) -> str:
    """The first value of a name, "nothing" if the probe did not print it."""
    return next(iter(values.get(name, ())), "nothing")


def amount(values: Values, name: str) -> int | None:
    """The first value of a name as a number, None if it is not one."""
    value = one(values, name)
    return int(value) if value.isdecimal() else None


def refused(prefix: str) -> Callable[[Values, Target], Verdict]:
    """Every value whose name begins with the prefix must be an error, and there must be at least one."""

    def judge(values: Values, _: Target) -> Verdict:
        found = {name: one(values, name) for name in values if name.startswith(prefix)}
        open_ = [f"{name.rpartition('.')[2]}={value}" for name, value in found.items() if value not in REFUSED]
        if open_ or not found:
            return ", ".join(open_) or "nothing", False
        return f"all {len(found)} refused", True

    return judge


def at_most(name: str, limit: Callable[[Target], int]) -> Callable[[Values, Target], Verdict]:
    """The value must be a number that does not exceed the limit."""

    def judge(values: Values, target: Target) -> Verdict:
        value = amount(values, name)
        return one(values, name), value is not None and value <= limit(target)

    return judge


def families(name: str, allowed: frozenset[int]) -> Callable[[Values, Target], Verdict]:
    def judge(values: Values, _: Target) -> Verdict:
        said = one(values, name)
        found = {int(one) for one in said.split(",") if one.isdecimal()}
        return said, said == "none" or (bool(found) and found <= allowed)

    return judge


def equals(name: str, *wanted: str) -> Callable[[Values, Target], Verdict]:
    def judge(values: Values, _: Target) -> Verdict:
        return one(values, name), one(values, name) in wanted

    return judge


def hidden(prefix: str) -> Callable[[Values, Target], Verdict]:
    """Every file whose name begins with the prefix must be empty or unreadable, and there must be at least one."""

    def judge(values: Values, _: Target) -> Verdict:
        found = {name.removeprefix(prefix): one(values, name) for name in values if name.startswith(prefix)}
        shown = [name for name, value in found.items() if value.isdecimal() and value != "0"]
        return ", ".join(shown) or f"all {len(found)} hidden", bool(found) and not shown

    return judge


def _identity(values: Values, target: Target) -> Verdict:
    bounding, effective = one(values, "status.CapBnd"), one(values, "status.CapEff")
    try:
        right = int(bounding, 16) | target.capabilities == target.capabilities
    except ValueError:
        right = False
    return f"bounding {bounding}, effective {effective}", right


def _ids(values: Values, _: Target) -> Verdict:
    first = amount(values, "status.first_id")
    return one(values, "status.first_id"), first is not None and first >= 1 << 16


def _sysfs(values: Values, target: Target) -> Verdict:
    own = f"entries.{_CGROUPS}" if target.init == "systemd" else ""
    return hidden("entries.")({name: found for name, found in values.items() if name != own}, target)


def _writable(values: Values, target: Target) -> Verdict:
    own = _DELEGATED if target.init == "systemd" else frozenset()
    found = [path for path in values.get("writable", ()) if not path.startswith(WRITABLE) and path not in own]
    counted = amount(values, "writable.count") is not None
    return ", ".join(found) or f"{one(values, 'writable.count')} settings of its own network", counted and not found


def _disk(values: Values, target: Target) -> Verdict:
    written = [amount(values, name) for name in ("disk.file", "disk.subvolume")]
    held = [value is None or value <= target.disk * 1.1 for value in written]
    seen = f"{one(values, 'disk.file')} in a file, {one(values, 'disk.subvolume')} in a subvolume"
    return seen, written[0] is not None and all(held)


def processors(values: Values, target: Target) -> Verdict:
    said, cpuinfo, stat = _processors(values)
    return said, _at_most_its_own(cpuinfo, target) and _at_most_its_own(stat, target)


def _container_processors(values: Values, target: Target) -> Verdict:
    """cgroup v2 does not account CPU time per processor, so lxcfs shows the stat of the node (lxc/lxcfs#593)."""
    if target.cgroup == "v1":
        return processors(values, target)
    said, cpuinfo, stat = _processors(values)
    return said, _at_most_its_own(cpuinfo, target) and stat is not None


def _processors(values: Values) -> tuple[str, int | None, int | None]:
    cpuinfo, stat = amount(values, "view.cpuinfo"), amount(values, "view.stat")
    return f"{cpuinfo} in cpuinfo, {stat} in stat", cpuinfo, stat


def _at_most_its_own(count: int | None, target: Target) -> bool:
    return count is not None and count <= max(1, math.ceil(target.cpu))


def _own_name(values: Values, target: Target) -> Verdict:
    said = one(values, "view.hostname")
    return said, said.startswith(target.name)


def _mounts(values: Values, _: Target) -> Verdict:
    shown = [path for path in values.get("view.mount", ()) if "/pool/" in path or path.startswith("/var/lib/slicemgr")]
    return ", ".join(shown) or "no path of the node", not shown and bool(values.get("view.mount"))


def _processes_seen(values: Values, target: Target) -> Verdict:
    first, count = one(values, "view.init"), amount(values, "view.processes")
    right = count is not None and 0 < count < 64 and (first == "systemd") == (target.init == "systemd")
    return f"process 1 is {first}, {count} processes", right


def _links(values: Values, _: Target) -> Verdict:
    links = set(values.get("view.link", ()))
    return ", ".join(sorted(links)) or "none", links == {"lo", "eth0"}


def _tcp_buffers(values: Values, target: Target) -> Verdict:
    """Each socket may exceed the limit, on v1 by the size of one write, on v2 by one buffer: docs/threat-model.md."""
    held, sockets = amount(values, "buffers.tcp"), amount(values, "buffers.sockets")
    most = target.memory + (sockets or 0) * _ONE_WRITE[target.cgroup]
    return f"{held} in {sockets} sockets", held is not None and held <= most


def _ring_sum(values: Values, _: Target) -> Verdict:
    held = amount(values, "rings.sum")
    return one(values, "rings.sum"), held is not None and held <= LARGEST_RING


def _fragments(values: Values, _: Target) -> Verdict:
    raised = [one(values, f"fragments.{one_}_raise") for one_ in ("ipv4", "ipv6")]
    return f"raising: {', '.join(raised)}", all(value in REFUSED for value in raised)


PAPER = (
    Check("table 3: hostname", "the sliver's own", lambda _: ("view",), _own_name),
    Check("table 3: machine", "x86_64 or i686", lambda _: ("view",), equals("view.machine", "x86_64", "i686")),
    Check("table 3: syslog", "refused", lambda _: ("calls",), refused("call64.syslog")),
    Check("table 3: network", "lo, eth0", lambda _: ("view",), _links),
    Check("table 3: mount points", "no path of the node", lambda _: ("view",), _mounts),
    Check(
        "table 3: memory",
        "meminfo shows at most the limit",
        lambda _: ("view",),
        at_most("view.meminfo", lambda target: target.memory),
    ),
    Check("table 3: sysfs", "hidden", lambda _: ("files",), _sysfs),
    Check("table 3: procfs", "hidden", lambda _: ("files",), hidden("read.")),
    Check("table 3: procfs, writable", "none but the network's own", lambda _: ("files",), _writable),
    Check("table 3: tools", "its own processors", lambda _: ("view",), _container_processors),
    Check("table 3: PID", "its own processes", lambda _: ("view",), _processes_seen),
    Check(
        "table 3: devpts",
        "at most its terminals",
        lambda target: ("terminals", target.terminals + 200),
        at_most("terminals", lambda target: target.terminals),
    ),
    Check(
        "table 3: quota",
        "at most the disk limit",
        lambda target: ("disk", target.directory, target.disk + 64 * MIB),
        _disk,
        timeout=600.0,
    ),
)
CONFINEMENT = (
    Check("system calls, 64 bit", "refused", lambda _: ("calls",), refused("call64.")),
    Check("system calls, 32 bit", "refused", lambda _: ("calls",), refused("call32.")),
    Check("system calls, x32", "refused", lambda _: ("calls",), refused("x32.")),
    Check(
        "socket families, 64 bit", "1, 2, 10, 16, 17 at most", lambda _: ("sockets",), families("families64", FAMILIES)
    ),
    Check(
        "socket families, 32 bit", "1, 2, 10, 16, 17 at most", lambda _: ("sockets",), families("families32", FAMILIES)
    ),
    Check(
        "socket families, socketcall",
        "none",
        lambda _: ("sockets",),
        families("families_socketcall", frozenset()),
    ),
    Check("capabilities", "those of the list", lambda _: ("status",), _identity),
    Check("seccomp", "a filter", lambda _: ("status",), equals("status.Seccomp", "2")),
    Check("host ids", "65536 or above", lambda _: ("status",), _ids),
    Check("protection from the OOM killer", "refused", lambda _: ("status",), refused("status.oom_lower")),
    Check("devices", "refused", lambda _: ("devices",), refused("device.")),
    Check("requests to the pool", "refused", lambda _: ("pool",), refused("pool.")),
)
LIMITS = (
    Check(
        "processes",
        "at most its limit",
        lambda target: ("processes", target.pids + 100),
        at_most("processes", lambda target: target.pids),
    ),
    Check("memory", "killed beyond the limit", lambda t: ("memory", t.memory + 64 * MIB), equals("memory", "killed")),
    Check(
        "packet ring, large",
        "refused",
        lambda t: ("rings", LARGEST_RING, 2 * LARGEST_RING),
        equals("rings.large", "ENOMEM"),  # after which libpcap requests less
    ),
    Check(
        "packet ring, tcpdump's",
        "ok",
        lambda t: ("rings", LARGEST_RING, 2 * LARGEST_RING),
        equals("rings.capture", "ok"),
    ),
    Check(
        "packet rings, sum",
        f"at most {LARGEST_RING >> 20} MiB",
        lambda t: ("rings", LARGEST_RING, 2 * LARGEST_RING),
        _ring_sum,
    ),
    Check("fragments' threshold", "refused", lambda t: ("fragments", 256 * MIB), _fragments),
    Check(
        "TCP buffers",
        "at most the memory limit, and 64 KiB a socket (cgroup v1: 128 KiB)",
        lambda target: ("buffers", "tcp", target.memory + 64 * MIB),
        _tcp_buffers,
    ),
    Check(
        "UDP buffers",
        "at most the memory limit",
        lambda target: ("buffers", "udp", target.memory + 64 * MIB),
        at_most("buffers.udp", lambda target: target.memory),
    ),
)
INSIDE = (*PAPER, *CONFINEMENT, *LIMITS)


def judged(check: Check, kind: str, values: Values, target: Target) -> Row:
    """The row of a check in the report."""
    seen, ok = check.judge(values, target)
    return Row(check.row, kind, check.expected, seen, ok)


def parse(text: str) -> dict[str, list[str]]:
    """The values of the probe by name. Lines that do not have the probe's format are ignored."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, tab, value = line.partition("\t")
        if tab and 0 < len(name) <= 100 and len(value) <= 200 and name.isascii() and (name + value).isprintable():
            found.setdefault(name, []).append(value)
    return found

"""What the kernel of the node offers: control groups, their limits, and tables of which slivers share one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slicemgr.agent.checks.result import Check, at_least, number
from slicemgr.config import Config
from slicemgr.drivers.kernel import capture_rings as rings
from slicemgr.drivers.kernel import cgroup, counters, idle_pages, page_samples
from slicemgr.drivers.kernel.idle_pages import Damon, PageIdle
from slicemgr.human import size

_MACHINED = Path("/usr/share/dbus-1/system-services/org.freedesktop.machine1.service")
_CONTROLLERS = ("memory", "cpu", "pids")


def cgroups() -> Check:
    try:
        unified = (Path("/sys/fs/cgroup/cgroup.controllers")).read_text().split()
        version, present = "v2", unified
    except FileNotFoundError:
        root = Path("/sys/fs/cgroup")
        version, present = "v1", [one.name for one in root.iterdir()] if root.is_dir() else []
    return control_groups(version, present, registers=Path("/run/systemd/system").is_dir() and _MACHINED.exists())


def control_groups(version: str, present: Sequence[str], *, registers: bool) -> Check:
    """present: the controllers. registers: whether libvirt registers containers with systemd. Pure."""
    missing = [one for one in _CONTROLLERS if one not in present]
    if missing:
        detail = f"cgroup {version}, missing: {', '.join(missing)}"
        return Check("cgroups", False, detail, "enable the controllers on the kernel command line")
    if version == "v1" and registers:
        detail = "cgroup v1 with systemd-machined: libvirt cannot start containers (systemd issue 13629)"
        return Check("cgroups", False, detail, "boot with systemd.unified_cgroup_hierarchy=1")
    return Check("cgroups", True, f"cgroup {version}")


def memory_of_sockets() -> Check:
    try:
        options = Path("/proc/cmdline").read_text().split()
    except OSError:
        options = []
    return socket_memory(cgroup.version(), options, limited=cgroup.has_socket_limit())


def socket_memory(version: str, options: Sequence[str], *, limited: bool) -> Check:
    """Whether socket memory is limited. options: the kernel's command line. limited: whether v1 has a limit. Pure."""
    name = "socket memory"
    off = {word for option in options if option.startswith("cgroup.memory=") for word in option[14:].split(",")}
    if off & {"nosocket", "nokmem"}:
        found = ", ".join(sorted(off & {"nosocket", "nokmem"}))
        return Check(
            name,
            False,
            f"cgroup.memory={found}: socket memory is not counted",
            f"remove {found} from the kernel command line",
        )
    remedy = "boot with systemd.unified_cgroup_hierarchy=1"
    if version == "v2":
        return Check(name, True, "counts against the memory limit of the sliver")
    if not limited:
        return Check(name, False, "cgroup v1 without memory.kmem.tcp.limit_in_bytes: not limited", remedy)
    detail = "cgroup v1: TCP and UDP buffers have a separate limit, which many connections can exceed"
    return Check(name, None, detail, remedy)


def memory_guarantees(config: Config) -> Check:
    """Whether something keeps the guarantees of slivers when the memory of the node is short."""
    return guarantees(cgroup.version(), config.memory.controller)


def guarantees(version: str, controller: str) -> Check:
    """controller: the setting. Pure."""
    name, setting = "memory guarantees", 'set memory.controller = "on"'
    if version == "v1":
        if controller == "on":
            return Check(name, True, "cgroup v1: kept by the memory controller")
        return Check(name, None, f'cgroup v1: only the memory controller keeps them, and it is "{controller}"', setting)
    if controller == "off":
        return Check(name, None, "the kernel does not know of them", 'set memory.controller = "observe"')
    return Check(name, True, "cgroup v2: kept by the kernel")


def memory_reclaim() -> Check:
    """Which memory of slivers the node can take back when it runs short."""
    return reclaim(cgroup.version(), counters.memory().swap_total, zswap=counters.zswap())


def reclaim(version: str, swap: int, *, zswap: bool) -> Check:
    """swap: bytes of it that the node has. zswap: whether the kernel compresses what goes there. Pure."""
    name, setting = "memory reclaim", "boot with zswap.enabled=1"
    if not swap:
        detail = "no swap: page cache can be taken, the memory of programs cannot"
        return Check(name, None, detail, f"add swap to the node, and {setting}")
    detail = f"page cache, and memory of programs to {size(swap)} of swap"
    if version == "v2":
        detail += ", which slivers cannot use by themselves"
    if not zswap:
        return Check(name, None, f"{detail}; without zswap, each page is written to the disk", setting)
    return Check(name, True, f"{detail}, compressed by zswap first")


def idle_memory(config: Config) -> Check:
    """How the node finds out which memory of slivers is idle."""
    tracker = idle_pages.of_machine(config.node.run_dir / idle_pages.NOTE)
    free = not isinstance(tracker, Damon) or tracker.is_free()
    return idle(type(tracker).__name__ if tracker else "", free=free, generations=page_samples.has_generations())


def idle(tracker: str, *, free: bool, generations: bool) -> Check:
    """tracker: its class, "" for none. free: no other program uses it. generations: as `has_generations`. Pure."""
    name, lists = "idle memory", "only the kernel's lists show what is idle"
    if not tracker:
        remedy = (
            "a kernel with CONFIG_IDLE_PAGE_TRACKING, or with CONFIG_DAMON_PADDR and CONFIG_DAMON_SYSFS (Linux 6.7)"
        )
        return Check(name, None, f"no pages are tracked, by this kernel or for a part of a machine: {lists}", remedy)
    if not free:
        return Check(name, None, f"another program uses DAMON: {lists}", "end that program's use of DAMON")
    detail = "found by page idle tracking" if tracker == PageIdle.__name__ else "found by DAMON"
    if generations:
        detail += "; of files that are read and not mapped, by the kernel's lists (lru_gen)"
    return Check(name, True, detail)


def capture_rings(config: Config) -> Check:
    """Whether the launcher finds the program; the agent's log has the reason if it could not be loaded."""
    if rings.program(config.node.run_dir) is not None:
        return Check("capture rings", True, f"at most {config.limits.capture_rings.bytes >> 10} KiB in each sliver")
    detail = "denied in slivers, because this kernel cannot limit them with BPF; tcpdump does not work"
    return Check("capture rings", None, detail, "Linux 5.18 or newer with CONFIG_CGROUP_BPF; then restart the agent")


def ptys() -> Check:
    limit = number("/proc/sys/kernel/pty/max")
    return at_least("pseudo terminals", limit, 16384, "kernel.pty.max", "terminals of all slivers")


def inotify() -> Check:
    limit = number("/proc/sys/fs/inotify/max_user_instances")
    return at_least("inotify", limit, 128, "fs.inotify.max_user_instances", "instances of one user")

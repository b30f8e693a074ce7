"""Check all requirements of the node and report the remedy for what is missing. The checks change nothing.

`ok` is True, False, or None if the node works with restrictions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slicemgr.config import Config, NetworkConfig
from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.importer import confinement, disk_image
from slicemgr.drivers.importer.confinement import View
from slicemgr.drivers.kernel import capture_rings, cgroup
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.host import Acceleration
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import conntrack, fragments, traffic
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage import btrfs_space
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.errors import Refused, SlicemgrError
from slicemgr.human import size
from slicemgr.ipc import clock_offset
from slicemgr.model import SliverType
from slicemgr.store.incarnation import REVIEW, Incarnation

_PROGRAMS = {
    "supermin": "apt-get install libguestfs-tools",
    "bwrap": "apt-get install bubblewrap",
    "setpriv": "apt-get install util-linux",
    "prlimit": "apt-get install util-linux",
    "qemu-img": "apt-get install qemu-utils",
    "zstd": "apt-get install zstd",
    "iptables-restore": "apt-get install iptables",
    "ip": "apt-get install iproute2",
    "tc": "apt-get install iproute2",
}
_CONTROLLERS = ("memory", "cpu", "pids")
_NODES = 4096  # bytes of a tree node of the pool: see docs/how-to/install.md
_METADATA_LEFT = 0.1  # share of the space for metadata; with less, the node needs attention
_OWN_CONNECTIONS = 32768  # connections of the node itself
_NEARLY_FULL = 0.9
_LOOSE = 2  # value of rp_filter
_ENOUGH_NEIGHBOURS = 65536
_SHOWN = 5  # number of slivers at their limit that are named
_OLD_KERNEL = (6, 7)
_CLOCK = 5.0  # seconds by which clocks may differ


@dataclass(frozen=True, slots=True)
class Check:
    """One result. ok: None if the node works with restrictions. remedy: how to fix it, "" if ok is True."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def examine(
    config: Config,
    hypervisor: Hypervisor,
    pool: Pool,
    firewall: Firewall,
    machines: Found | None,
    *,
    in_agent: bool = True,
) -> list[Check]:
    """Every check. A check comes after those that it depends on. in_agent: whether `firewall` wrote the rules here."""
    checks: list[Callable[[], Check]] = [
        _root,
        lambda: _libvirt(hypervisor, SliverType.LXC),
        lambda: _libvirt(hypervisor, SliverType.KVM),
        lambda: _acceleration(machines),
        lambda: _launcher(config),
        lambda: _proc_view(ProcView(config.node.run_dir)),
        _cgroups,
        _socket_memory,
        lambda: _capture_rings(config),
        _fragments,
        lambda: _pool(pool),
        lambda: _quota(pool),
        lambda: _space(pool),
        lambda: _metadata(pool),
        lambda: _firewall(firewall, in_agent=in_agent),
        _forwarding,
        *(lambda name=name, remedy=remedy: _program(name, remedy) for name, remedy in _PROGRAMS.items()),
        _appliance,
        lambda: _importer(config),
        _neighbours,
        _ptys,
        lambda: _conntrack(config.network, firewall),
        _rates,
        _files,
        *([lambda: clock(clock_offset.read(config.clock_file))] if config.joined else []),
    ]
    return [check if check.ok is not True else replace(check, remedy="") for check in (one() for one in checks)]


def hold(held: Incarnation | None) -> Check:
    """Whether the database is on hold after a restore. Pure."""
    if held is None:
        return Check("restore", True, "not on hold")
    detail = f"{held.says()}: no sliver is created, repaired, stopped or deleted"
    return Check("restore", False, detail, f"run `{REVIEW}` on the node of the service")


def counters(wrong: Collection[str]) -> Check:
    """Whether what slivers were allocated is counted correctly. wrong: the nodes for which it is not. Pure."""
    detail = f"they differ from the slivers of {', '.join(wrong)}" if wrong else "agree with the slivers of all nodes"
    return Check("allocation counters", not wrong, detail, "restart the agent, which counts again; then report a bug")


def clock(ahead: float | None) -> Check:
    """Whether the clock of a host that joined is right. ahead: seconds, compared with the centre's. Pure."""
    if ahead is None:
        return Check(
            "node clock", None, "not compared with the centre's", "start `slicemgr link`, and run the check again"
        )
    remedy = "run a time service, such as systemd-timesyncd or chrony, on this host and on the centre"
    return Check("node clock", True if abs(ahead) < _CLOCK else None, clock_offset.words(ahead), remedy)


def report(checks: list[Check]) -> dict[str, object]:
    """The result of a `doctor` operation."""
    return {"checks": [asdict(check) for check in checks]}


def _root() -> Check:
    return Check("privileges", os.geteuid() == 0, f"the agent runs as uid {os.geteuid()}", "run the agent as root")


def _libvirt(hypervisor: Hypervisor, sliver_type: SliverType) -> Check:
    driver = "lxc" if sliver_type is SliverType.LXC else "qemu"
    name = f"libvirt {driver} driver"
    try:
        return Check(name, True, hypervisor.version(sliver_type))
    except SlicemgrError as error:
        ok = False if sliver_type is SliverType.LXC else None
        return Check(name, ok, error.message, f"apt-get install libvirt-daemon-driver-{driver} and start libvirtd")


def _acceleration(machines: Found | None) -> Check:
    name, remedy = "acceleration", "enable virtualization in the firmware, or set libvirt.acceleration"
    if machines is None:
        return Check(name, None, "the check has not ended", "run the check again in a minute")
    if machines.acceleration is None:
        return Check(name, None, f"no virtual machines: {machines.reason}", remedy)
    fast = machines.acceleration is Acceleration.KVM
    return Check(name, True if fast else None, f"{machines.acceleration}: {machines.reason}", remedy)


def _launcher(config: Config) -> Check:
    path = config.libvirt.launcher
    return Check(
        "launcher",
        os.access(path, os.X_OK),
        str(path),
        "install a C compiler and libseccomp-dev, reinstall slicemgr, or set libvirt.launcher",
    )


def _proc_view(view: ProcView) -> Check:
    name = "lxcfs"
    if not view.installed():
        detail = "not found; containers show the load, processors and uptime of the node"
        return Check(name, None, detail, "apt-get install lxcfs, then restart the agent; only new slivers use it")
    if view.answers():
        return Check(name, True, f"is mounted on {view.mount}")
    return Check(name, None, "does not respond; containers cannot read /proc/stat", "see the log of the agent")


def _cgroups() -> Check:
    try:
        unified = (Path("/sys/fs/cgroup/cgroup.controllers")).read_text().split()
        version, present = "v2", unified
    except FileNotFoundError:
        root = Path("/sys/fs/cgroup")
        version, present = "v1", [one.name for one in root.iterdir()] if root.is_dir() else []
    missing = [one for one in _CONTROLLERS if one not in present]
    detail = f"cgroup {version}, missing: {', '.join(missing)}" if missing else f"cgroup {version}"
    return Check("cgroups", not missing, detail, "enable the controllers on the kernel command line")


def _socket_memory() -> Check:
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


def _capture_rings(config: Config) -> Check:
    """Whether the launcher finds the program; the agent's log has the reason if it could not be loaded."""
    if capture_rings.program(config.node.run_dir) is not None:
        return Check("capture rings", True, f"at most {config.limits.capture_rings.bytes >> 10} KiB in each sliver")
    detail = "denied in slivers, because this kernel cannot limit them with BPF; tcpdump does not work"
    return Check("capture rings", None, detail, "Linux 5.18 or newer with CONFIG_CGROUP_BPF; then restart the agent")


def _fragments() -> Check:
    name = "fragments"
    if not fragments.is_installed():
        detail = "one sliver can fill the memory of the node for packet fragments"
        return Check(name, None, detail, "apt-get install nftables, then restart the agent")
    limit = _number("/proc/sys/net/ipv4/ipfrag_high_thresh")
    return _at_least(name, limit, 256 << 20, "net.ipv4.ipfrag_high_thresh", "fragments of all slivers that wait")


def _pool(pool: Pool) -> Check:
    try:
        pool.check()
        nodes = pool.node_size()
    except SlicemgrError as error:
        return Check("pool", False, str(error), "mount a btrfs filesystem there (see docs/how-to/install.md)")
    detail = f"btrfs at {pool.path}, nodes of {nodes >> 10} KiB"
    if nodes > _NODES:
        detail += "; slivers use more than twice the disk space, and creating many of them is slower"
        return Check(
            "pool", None, detail, "use `mkfs.btrfs --nodesize 4k` for a new pool; an existing pool cannot be changed"
        )
    return Check("pool", True, detail)


def _quota(pool: Pool) -> Check:
    try:
        mode = pool.quota_mode()
    except (SlicemgrError, OSError) as error:
        return Check("disk quota", False, str(error), "mount the pool first")
    release = os.uname().release
    match mode:
        case QuotaMode.SIMPLE:
            return Check("disk quota", True, "simple quotas")
        case QuotaMode.FULL:
            return Check(
                "disk quota",
                None,
                f"full quota groups on Linux {release}: snapshots become slower as slivers grow, and tenants cannot "
                "create subvolumes",
                f"Linux {_OLD_KERNEL[0]}.{_OLD_KERNEL[1]} or newer supports simple quotas",
            )
        case QuotaMode.NONE:
            return Check(
                "disk quota",
                None,
                "not available; the disk limits of slivers are not enforced",
                "restart the agent after `btrfs quota enable` works on the pool",
            )


def _space(pool: Pool) -> Check:
    try:
        space = pool.space()
    except (SlicemgrError, OSError) as error:
        return Check("pool space", False, str(error), "mount the pool first")
    share = space.free / space.total if space.total else 0.0
    return Check("pool space", None if share < 0.1 else True, f"{share:.0%} free", "delete slices or grow the pool")


def _metadata(pool: Pool) -> Check:
    name, remedy = "pool metadata", "grow the pool, or delete slices with many small files"
    try:
        found = btrfs_space.metadata(pool.path)
    except OSError as error:
        return Check(name, False, f"cannot be read: {error.strerror}", "mount the pool first")
    share = found.room / ((found.used + found.room) or 1)
    detail = f"{size(found.used)} in use, {size(found.room)} available"
    return Check(name, None if share < _METADATA_LEFT else True, detail, remedy)


def _firewall(firewall: Firewall, *, in_agent: bool) -> Check:
    """In the agent, whether the rules are those that it wrote; elsewhere, whether rules can be written here."""
    name, remedy = "firewall", "restart the agent, which rewrites its chains"
    try:
        problems = firewall.check() if in_agent else []
        detail = "; ".join(problems) if problems else f"{firewall.backend} back end: {firewall.reason}"
    except SlicemgrError as error:
        return Check(name, False, str(error), "apt-get install iptables")
    return Check(name, not problems, detail, remedy)


def _forwarding() -> Check:
    on = _number("/proc/sys/net/ipv4/ip_forward") == 1
    return Check("forwarding", on, "net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d")


def _program(name: str, remedy: str) -> Check:
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return Check(name, path is not None, path or "not found", remedy)


def _appliance() -> Check:
    kernels = sorted(Path("/boot").glob("vmlinu?-*"))
    detail = f"kernel for libguestfs: {kernels[-1]}" if kernels else "libguestfs cannot find a kernel in /boot"
    return Check("appliance", bool(kernels), detail, "apt-get install linux-image-cloud-amd64")


def _importer(config: Config) -> Check:
    """Whether the importer's program with libguestfs' binding starts in its confinement as its user."""
    name, remedy = "importer", "apt-get install python3-guestfs bubblewrap; importer.user must be a dedicated user"
    try:
        who = confinement.user(config.importer.user)
        line = [disk_image.SYSTEM_PYTHON, "-I", "-B", "-c", "import guestfs"]
        confinement.run(line, who, disk_image.CHECK_BOUNDS, View({}, {}), timeout=60)
    except (CommandFailed, Refused) as error:
        return Check(name, False, str(error).strip().splitlines()[-1][:200], remedy)
    return Check(name, True, f"confined as uid {who.uid}")


def _neighbours() -> Check:
    limit = _number("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    try:
        used = max(int(row.split()[0], 16) for row in Path("/proc/net/stat/arp_cache").read_text().splitlines()[1:])
    except (FileNotFoundError, ValueError):  # exists only in the initial network namespace
        used = None
    return neighbours(limit, used, _number("/proc/sys/net/ipv4/conf/all/rp_filter"))


def neighbours(limit: int | None, used: int | None, path_filter: int | None) -> Check:
    """Whether the table has room, and whether forged ARP requests can add entries. Pure.

    limit: collectable entries of all network namespaces. used: entries of any kind. path_filter: the setting for all
    links, which each link's own setting can raise but not lower: 2 is loose, and 1 is strict.
    """
    name, sysctl = "neighbour table", "net.ipv4.neigh.default.gc_thresh3"
    if path_filter == _LOOSE:
        detail = "net.ipv4.conf.all.rp_filter = 2: forged ARP requests of slivers create entries"
        return Check(name, None, detail, "sysctl -w net.ipv4.conf.all.rp_filter=0 (each link has its own setting)")
    if limit is None:
        return Check(name, None, f"{sysctl} does not exist, because this is not the initial network namespace")
    detail = f"{sysctl} = {limit}" + (f", {used} entries" if used is not None else "")
    full = used is not None and used > _NEARLY_FULL * limit
    remedy = f"sysctl -w {sysctl}={_ENOUGH_NEIGHBOURS}; the slivers share one table"
    return Check(name, True if limit >= _ENOUGH_NEIGHBOURS and not full else None, detail, remedy)


def _ptys() -> Check:
    limit = _number("/proc/sys/kernel/pty/max")
    return _at_least("pseudo terminals", limit, 16384, "kernel.pty.max", "terminals of all slivers")


def _conntrack(network: NetworkConfig, firewall: Firewall) -> Check:
    limit, used = _number("/proc/sys/net/netfilter/nf_conntrack_max"), conntrack.total()
    try:
        busiest = firewall.busiest()
    except OSError as error:
        return Check(
            "connection tracking", None, f"the connections cannot be counted: {error}", "modprobe nf_conntrack"
        )
    return connections(network, limit, used, firewall.published, busiest)


def connections(
    network: NetworkConfig, limit: int | None, used: int | None, published: int, busiest: Mapping[str, int]
) -> Check:
    """Whether the table has room for the shares of all slivers and of the node. Pure.

    limit: entries, at most. used: entries in use. busiest: sliver → entries, of the slivers at their limit.
    """
    name, sysctl = "connection tracking", "net.netfilter.nf_conntrack_max"
    if limit is None or used is None:
        return Check(name, None, f"this kernel has no {sysctl}", "modprobe nf_conntrack")
    each = 2 * network.connections  # connections that it opens, and connections to it
    enough = max(65536, published * each + _OWN_CONNECTIONS)
    detail = f"{sysctl} = {limit}, {used} in use; {published} slivers can use up to {each} each"
    if busiest:
        shown = sorted(busiest, key=lambda one: -busiest[one])[:_SHOWN]
        more = f" and {len(busiest) - _SHOWN} more" if len(busiest) > _SHOWN else ""
        detail += "; at their limit: " + ", ".join(f"{one} ({busiest[one]})" for one in shown) + more
    good = limit >= enough and used <= _NEARLY_FULL * limit
    return Check(name, True if good else None, detail, f"sysctl -w {sysctl}={enough}, or lower network.connections")


def _rates() -> Check:
    traffic.missing.cache_clear()
    missing = traffic.missing()
    detail = f"the kernel lacks {', '.join(missing)}" if missing else "in both directions"
    remedy = "build or load these modules (modprobe); until then --net-in and --net-out are refused"
    return Check("network rates", None if missing else True, detail, remedy)


def _files() -> Check:
    limit = _number("/proc/sys/fs/inotify/max_user_instances")
    return _at_least("inotify", limit, 128, "fs.inotify.max_user_instances", "instances of one user")


def _at_least(name: str, value: int | None, enough: int, sysctl: str, what: str) -> Check:
    if value is None:
        return Check(name, None, f"this kernel has no {sysctl}")
    detail = f"{sysctl} = {value} ({what})"
    return Check(name, True if value >= enough else None, detail, f"sysctl -w {sysctl}={enough} for a thousand slivers")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (FileNotFoundError, ValueError, PermissionError):
        return None

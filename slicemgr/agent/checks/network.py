"""The network of the node: its firewall, and the tables that all slivers fill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slicemgr.agent.checks.result import Check, at_least, number
from slicemgr.config import NetworkConfig
from slicemgr.drivers.network import conntrack, traffic
from slicemgr.drivers.network import fragments as fragment_rules
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.errors import SlicemgrError

_OWN_CONNECTIONS = 32768  # connections of the node itself
_NEARLY_FULL = 0.9
_LOOSE = 2  # value of rp_filter
_ENOUGH_NEIGHBOURS = 65536
_SHOWN = 5  # number of slivers at their limit that are named


def fragments() -> Check:
    name = "fragments"
    if not fragment_rules.is_installed():
        detail = "one sliver can fill the memory of the node for packet fragments"
        return Check(name, None, detail, "apt-get install nftables, then restart the agent")
    limit = number("/proc/sys/net/ipv4/ipfrag_high_thresh")
    return at_least(name, limit, 256 << 20, "net.ipv4.ipfrag_high_thresh", "fragments of all slivers that wait")


def rules(firewall: Firewall, *, in_agent: bool) -> Check:
    """In the agent, whether the rules are those that it wrote; elsewhere, whether rules can be written here."""
    name, remedy = "firewall", "restart the agent, which rewrites its chains"
    try:
        problems = firewall.check() if in_agent else []
        detail = "; ".join(problems) if problems else f"{firewall.backend} back end: {firewall.reason}"
    except SlicemgrError as error:
        return Check(name, False, str(error), "apt-get install iptables")
    return Check(name, not problems, detail, remedy)


def forwarding() -> Check:
    on = number("/proc/sys/net/ipv4/ip_forward") == 1
    return Check("forwarding", on, "net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d")


def neighbour_table() -> Check:
    limit = number("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    try:
        used = max(int(row.split()[0], 16) for row in Path("/proc/net/stat/arp_cache").read_text().splitlines()[1:])
    except (FileNotFoundError, ValueError):  # exists only in the initial network namespace
        used = None
    return neighbours(limit, used, number("/proc/sys/net/ipv4/conf/all/rp_filter"))


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


def connection_table(network: NetworkConfig, firewall: Firewall) -> Check:
    limit, used = number("/proc/sys/net/netfilter/nf_conntrack_max"), conntrack.total()
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


def rates() -> Check:
    traffic.missing.cache_clear()
    missing = traffic.missing()
    detail = f"the kernel lacks {', '.join(missing)}" if missing else "in both directions"
    remedy = "build or load these modules (modprobe); until then --net-in and --net-out are refused"
    return Check("network rates", None if missing else True, detail, remedy)

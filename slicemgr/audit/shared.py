"""Checks of shared resources, the network and tables of the node's kernel: one sliver acts, another observes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from slicemgr.audit.checks import REFUSED, Values, amount, one
from slicemgr.audit.row import OWN_KERNEL, Row, inapplicable
from slicemgr.audit.sliver import Inside
from slicemgr.client.ssh import answers

GATEWAY = "169.254.1.1"
SERVICES = (22, 53, 111, 5432, 5672, 16509)  # ssh, name service, rpcbind, PostgreSQL, RabbitMQ, libvirt
_UDP_PORT = 4001
_SILENCE = 2.0  # seconds for the ssh banner
_FORGED = "10.255.0.1"  # the first of the forged sender addresses, which no host has
_ARP = 64
_ARP_MARGIN = 8  # entries of the table that other slivers may add meanwhile
_IPV6_MILLISECONDS = 3000  # a node that answers solicits the address three times, once per second
_FLOW_MARGIN = 256  # connections that other slivers may open meanwhile
_UNREACHED = REFUSED | {"ECONNREFUSED", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"}

Tables = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Site:
    """The slivers of an audit. attacker and mate belong to one slice, the neighbour belongs to another project.

    tables: reads the tables of the node. service_port: of the web page. paused: a context in which the neighbour is
    paused.
    """

    type: str
    attacker: Inside
    mate: Inside
    neighbour: Inside
    tables: Tables
    service_port: int | None
    paused: Callable[[], AbstractContextManager[None]]


def rows(site: Site) -> Iterator[Row]:
    """All rows. The probes run one after the other, because their effects on the node could not be distinguished."""
    yield from between(site)
    yield from _counters(site)


def between(site: Site) -> Iterator[Row]:
    """The checks for all types of slivers: links, tables of the node, and the silence of a paused sliver."""
    yield from _reached(site)
    yield _spoofed(site)
    yield _connections(site)
    yield _neighbours(site)
    yield _ipv6(site)
    yield _frozen(site)


def _connects(site: Site, address: str, ports: Sequence[int]) -> dict[str, str]:
    """The result by `address:port`: `ok`, or the name of the errno."""
    found = site.attacker.probe(("connect", address, ",".join(map(str, ports))))
    return {f"{address}:{port}": one(found, f"connect.{port}") for port in ports}


def _connect(site: Site, address: str, port: int) -> str:
    return _connects(site, address, (port,))[f"{address}:{port}"]


def _reached(site: Site) -> Iterator[Row]:
    """The port of the mate is the control: it shows that the probe detects a successful connection."""
    mate = _connect(site, site.mate.shown["address"], 22)
    yield Row("network: a sliver of the same slice", site.type, "ok", mate, mate == "ok")
    neighbour = _connect(site, site.neighbour.shown["address"], 22)
    yield Row("network: a sliver of another project", site.type, "refused", neighbour, neighbour in _UNREACHED)
    public = site.neighbour.shown["ssh"]
    shown = _connect(site, public["host"], public["port"])
    yield Row("network: its public port", site.type, "ok", shown, shown == "ok")
    ports = [*SERVICES, *([site.service_port] if site.service_port else [])]
    found = {**_connects(site, GATEWAY, ports), **_connects(site, public["host"], ports)}
    open_ = [place for place, result in found.items() if result not in _UNREACHED]
    seen = ", ".join(open_) or f"all {len(found)} refused"
    yield Row("network: services of the node", site.type, "refused", seen, not open_)


def _spoofed(site: Site) -> Row:
    mate = site.mate.shown["address"]

    def send(source: str) -> Callable[[], None]:
        return lambda: void(site.attacker.probe(("spoof", source, mate, _UDP_PORT)))

    own = site.mate.received(_UDP_PORT, send(site.attacker.shown["address"]))
    forged = site.mate.received(_UDP_PORT, send(site.neighbour.shown["address"]))
    seen = f"{forged} arrived from a forged address, {own} from its own"
    return Row("network: forged source address", site.type, "none arrive", seen, forged == 0 and bool(own))


def void(_: Values) -> None:
    """Ignore the values of a probe."""


def _connections(site: Site) -> Row:
    """Opens connections beyond the limit by a quarter, but at most half of the free entries of the node."""
    name = "connection tracking"
    before = site.tables()["connections"]
    limit, room = before.get("per_sliver"), (before["limit"] - before["used"]) // 2
    if not isinstance(limit, int):
        return Row(name, site.type, "a limit for each sliver", "the node has none", False)
    count = min(limit + limit // 4 + _FLOW_MARGIN, room)
    sent = amount(site.attacker.probe(("flows", site.mate.shown["address"], count)), "flows")
    grown = site.tables()["connections"]["used"] - before["used"]
    seen = f"{grown} entries for {sent} flows"
    return Row(name, site.type, f"at most {limit}", seen, count > limit and grown <= limit + _FLOW_MARGIN)


def _neighbours(site: Site) -> Row:
    before = site.tables()["neighbours"]["used"]
    sent = amount(site.attacker.probe(("arp", _FORGED, _ARP)), "arp")
    grown = site.tables()["neighbours"]["used"] - before
    seen = f"{grown} entries for {sent} requests"
    return Row("forged ARP requests", site.type, "no entry on the node", seen, bool(sent) and grown <= _ARP_MARGIN)


def _ipv6(site: Site) -> Row:
    """Slivers have no IPv6, so every packet that arrives comes from the node."""
    found = site.attacker.probe(("ipv6", _IPV6_MILLISECONDS))
    sent, answers_ = amount(found, "ipv6.sent"), amount(found, "ipv6.answers")
    seen = f"{answers_} packets after {sent} requests"
    return Row("network: IPv6", site.type, "no answer", seen, bool(sent) and answers_ == 0)


def _frozen(site: Site) -> Row:
    """The row `freeze` of the paper's table 3: a paused sliver does nothing, and continues when it is resumed."""
    with site.paused():
        during = answers(site.neighbour.shown, _SILENCE)
    after = answers(site.neighbour.shown, 10 * _SILENCE)
    seen = f"ssh {'answers' if during else 'is silent'}, then {'answers' if after else 'is silent'}"
    return Row("table 3: freeze", site.type, "silent while paused", seen, after and not during)


def _numbers(table: Mapping[str, Any], most: int, wanted: int) -> tuple[int, int]:
    """What the attacker and then the neighbour request. table: `limit` is that of one user, if the node reports it.

    The attacker gets at most half of what the kernel gives one user, as that user may be the node's root. The neighbour
    then requests one more than the other half: so it misses some if both are the same user to the kernel.
    """
    limit = table.get("limit")
    if not isinstance(limit, int) or most <= limit // 2:
        return most, wanted
    return limit // 2, limit - limit // 2 + 1


# The probe; the number that the attacker requests (more than one sliver may have, less than the limit per user of
# tools/units/90-slicemgr.conf or Linux); the number that the neighbour must still get.
COUNTERS = (("inotify", 1100, 64), ("signals", 65536, 256), ("queues", 64, 4))


def _counters(site: Site) -> Iterator[Row]:
    """Limits that the kernel counts per user: objects of one sliver must not reduce the number for another."""
    tables = {} if site.type == "kvm" else site.tables()  # an agent of an earlier version reports none of these
    for name, most, wanted in COUNTERS:
        if site.type == "kvm":
            yield inapplicable(f"shared limit: {name}", site.type, f"{OWN_KERNEL}, which counts these")
            continue
        asked, wanted = _numbers(tables.get(name, {}), most, wanted)
        alone = amount(site.neighbour.probe((name, wanted)), name)
        with site.attacker.holding((name, asked)) as held:
            left = amount(site.neighbour.probe((name, wanted)), name)
            count = amount(held, name)
        seen = f"{left} of {alone} while another holds {count} of {asked}"
        ok = left is not None and left == alone and count is not None and (count < asked or asked < most)
        yield Row(f"shared limit: {name}", site.type, "bounded, and none taken from another", seen, ok)

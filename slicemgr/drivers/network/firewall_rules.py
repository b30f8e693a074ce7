"""The desired rules of the node's packet filter as plain data: the content of every chain `SLICEMGR-*`. Pure.

The path of a packet: raw PREROUTING (drops forged source addresses) → nat PREROUTING (port block → sliver) → mangle
INPUT or FORWARD (limits the number of connections) → filter INPUT or FORWARD (decides which destinations are allowed)
→ nat POSTROUTING (replaces pool addresses by the node's).

Chains are search trees: over port ranges for DNAT, and over the characters of the slice's tag for rules that depend on
the slice. A new connection passes the rules of one path, and a change of one sliver changes the chains of one path.

An interface test of iptables matches a prefix, and `sm+` also matches an unrelated interface named `smc0`. So a rule
that drops packets tests for the address pool, which belongs to slicemgr alone, or for the whole `smTAG-` of a published
slice; other packets on such an interface continue to the host's own rules. In consequence, the link of a sliver that is
not published may send only from the pool, but its IPv6 is not blocked. Publish a sliver before its link exists.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network
from typing import NamedTuple

from slicemgr import names
from slicemgr.config import NetworkConfig
from slicemgr.drivers.network.firewall_table import Chain, Match, Rule, Table
from slicemgr.model import PortBlock

PREFIX = f"{names.CHAIN_PREFIX}-"
LINKS = f"{names.MARK}+"
PORT_FANOUT = 8  # children of a port range
LEAF = 8  # blocks or slices listed in one chain before it is split
SSH = 22
PARTS = 16  # the number of parts in which a sliver's connections are counted

# Bridges whose owners (Docker, libvirt, ...) have their own rules for incoming connections: a sliver's connection to
# one is left to those rules instead of being accepted like one to the Internet.
PRIVATE_BRIDGES = ("docker+", "br-+", "virbr+", "lxdbr+", "incusbr+", "lxcbr+", "podman+", "cni+")


@dataclass(frozen=True, slots=True)
class Published:
    """The properties of a sliver that the rules need. siblings: slivers in its slice, including itself."""

    sliver: str
    tag: str
    address: str
    ports: PortBlock
    siblings: int = 1


ESTABLISHED = Match("conntrack", (("ctstate", "RELATED,ESTABLISHED"),))
INVALID = Match("conntrack", (("ctstate", "INVALID"),))
DNATED = Match("conntrack", (("ctstate", "DNAT"),))
TO_NODE = Match("addrtype", (("dst-type", "LOCAL"),))
FROM_NODE = Match("addrtype", (("src-type", "LOCAL"),))
NO_WAY_BACK = Match("rpfilter", (("invert", ""),))
PING = Match("icmp", (("icmp-type", "echo-request"),))
# Matches only the first packet of a connection. Until a reply, later ones are NEW as well, but CONFIRMED.
OPENING = Match("conntrack", (("ctstate", "NEW"), ("ctstatus", "!CONFIRMED")))


def tables(published: Collection[Published], network: NetworkConfig) -> tuple[Table, ...]:
    """All tables. Those that restrict come before the one that forwards ports."""
    tags = {one.tag: one.siblings > 1 for one in published}
    every = tuple(sorted(tags))
    return (
        _raw(network, every),
        _mangle(network),
        _filter(network, tuple(sorted(tag for tag, shared in tags.items() if shared))),
        _filter6(every),
        _nat(network, published),
    )


def _raw(network: NetworkConfig, tags: tuple[str, ...]) -> Table:
    pool = network.addresses
    chains: dict[str, Chain] = {
        f"{PREFIX}PREROUTING": (
            # Strict, whatever the host's rp_filter is: an address of the pool is valid only from its own link.
            Rule("DROP", source=pool, matches=(NO_WAY_BACK,)),
            Rule(f"{PREFIX}LINKS", source=f"!{pool}", in_link=LINKS, goto=True),
        ),
        **dict(_by_tag(f"{PREFIX}LINKS", tags, _from_slice("DROP"))),
    }
    jumps = ["PREROUTING"]
    if network.untracked:
        chains[f"{PREFIX}PREROUTING"] += tuple(_untracked(network, "dport", TO_NODE))
        chains[f"{PREFIX}OUTPUT"] = (
            *_untracked(network, "sport", FROM_NODE),
            *_untracked(network, "dport", TO_NODE),
        )
        jumps += ["OUTPUT"]
    return Table(False, "raw", tuple((builtin, PREFIX + builtin) for builtin in jumps), chains)


def _untracked(network: NetworkConfig, end: str, side: Match) -> Iterator[Rule]:
    for port in network.untracked:
        yield Rule("CT", (("notrack", ""),), "tcp", matches=(side, Match("tcp", ((end, str(port)),))))


def _mangle(network: NetworkConfig) -> Table:
    """Limit the connections that the node tracks for one sliver, and the rate of new ones.

    A packet that is dropped here leaves no entry behind. A connection between slivers counts for its opener only, so
    that no sliver can use up another's share. The rules name no sliver: the kernel counts by address, and loses its
    counts when the table is written (the legacy back end always writes it as a whole). So no change of slivers changes
    this table.
    """
    pool = network.addresses
    opens = Rule(f"{PREFIX}OPENS", source=pool, in_link=LINKS, matches=(OPENING,), goto=True)
    opened = Rule(f"{PREFIX}OPENED", destination=pool, out_link=LINKS, matches=(OPENING,), goto=True)
    chains: dict[str, Chain] = {
        f"{PREFIX}INPUT": (opens,),
        f"{PREFIX}FORWARD": (opens, opened),
        **_at_most(f"{PREFIX}OPENS", network, "src"),
        **_at_most(f"{PREFIX}OPENED", network, "dst"),
    }
    return Table(False, "mangle", (("INPUT", f"{PREFIX}INPUT"), ("FORWARD", f"{PREFIX}FORWARD")), chains)


def _at_most(name: str, network: NetworkConfig, end: str) -> dict[str, Chain]:
    """Limit the rate first: each counted connection uses memory until the kernel finds that it has ended.

    To count, the kernel walks all connections of an address. So each new connection is counted in one of several parts,
    chosen at random. If that part is full, the packet is dropped, and a retransmission is assigned a part again.
    """
    rate, most = network.connection_rate, network.connections
    by_rate = (
        ("hashlimit-above", f"{rate}/sec"),
        ("hashlimit-burst", str(most)),
        ("hashlimit-mode", f"{end}ip"),
        # The kernel keeps the values with the name when the table is replaced: other values need another name.
        ("hashlimit-name", f"sm{end}-{rate}-{most}"),
        ("hashlimit-htable-max", str(ip_network(network.addresses).num_addresses)),
        # In ms, until the whole burst is available again.
        ("hashlimit-htable-expire", str(1000 * (most // rate + 2))),
    )
    by_count = (("connlimit-above", str(most // PARTS)), ("connlimit-mask", "32"), (f"connlimit-{end[0]}addr", ""))
    parts = [f"{name}-{part}" for part in range(PARTS)]
    chances = [
        Match("statistic", (("mode", "random"), ("probability", f"{1 / left:.6f}"))) for left in range(PARTS, 1, -1)
    ]
    return {
        name: (
            Rule("DROP", matches=(Match("hashlimit", by_rate),)),
            *(Rule(part, matches=(chance,), goto=True) for part, chance in zip(parts, chances, strict=False)),
            Rule(parts[-1], goto=True),
        ),
        **dict.fromkeys(parts, (Rule("DROP", matches=(Match("connlimit", by_count),)),)),
    }


def _filter(network: NetworkConfig, shared: tuple[str, ...]) -> Table:
    pool, opened = network.addresses, Rule("ACCEPT", matches=(ESTABLISHED,))
    chains: dict[str, Chain] = {
        f"{PREFIX}INPUT": (Rule(f"{PREFIX}HOST", source=pool, in_link=LINKS, goto=True),),
        # Closes the node's own services at all addresses. DNATed connections do not pass this chain.
        f"{PREFIX}HOST": (
            opened,
            Rule("ACCEPT", protocol="icmp", destination=f"{network.gateway}/32", matches=(PING,)),
            Rule("DROP"),
        ),
        f"{PREFIX}FORWARD": (
            Rule(f"{PREFIX}FROM", source=pool, in_link=LINKS, goto=True),
            Rule(f"{PREFIX}TO", destination=pool, out_link=LINKS, goto=True),
            Rule("DROP", destination=pool),  # a sliver that no longer exists; the packet must not reach the LAN
        ),
        f"{PREFIX}FROM": (
            opened,
            Rule("DROP", matches=(INVALID,)),  # it would leave with its private source address
            Rule(f"{PREFIX}PEER", destination=pool, goto=True),
            *(Rule("DROP", destination=denied) for denied in network.denied),
            *(Rule("RETURN", out_link=bridge) for bridge in PRIVATE_BRIDGES),
            Rule("ACCEPT"),
        ),
        f"{PREFIX}PEER": (
            Rule("ACCEPT", out_link=LINKS, matches=(DNATED,)),
            Rule(f"{PREFIX}MATES"),
            Rule("DROP"),
        ),
        f"{PREFIX}TO": (opened, Rule("ACCEPT", matches=(DNATED,)), Rule("DROP")),
        **dict(_by_tag(f"{PREFIX}MATES", shared, _within_slice)),
    }
    return Table(False, "filter", (("INPUT", f"{PREFIX}INPUT"), ("FORWARD", f"{PREFIX}FORWARD")), chains)


def _filter6(tags: tuple[str, ...]) -> Table:
    """Block all IPv6: slivers have only the link-local address that every link gets."""
    chains: dict[str, Chain] = {
        f"{PREFIX}INPUT": (Rule(f"{PREFIX}LINKS", in_link=LINKS, goto=True),),
        f"{PREFIX}FORWARD": (
            Rule(f"{PREFIX}LINKS", in_link=LINKS),
            Rule(f"{PREFIX}OUT", out_link=LINKS, goto=True),
        ),
        **dict(_by_tag(f"{PREFIX}LINKS", tags, _from_slice("DROP"))),
        **dict(_by_tag(f"{PREFIX}OUT", tags, _to_slice("DROP"), into=True)),
    }
    return Table(True, "filter", (("INPUT", f"{PREFIX}INPUT"), ("FORWARD", f"{PREFIX}FORWARD")), chains)


def _nat(network: NetworkConfig, published: Collection[Published]) -> Table:
    pool = network.addresses
    blocks = tuple(sorted(_block(one.ports.first, one.ports.last, one.address) for one in published))
    chains: dict[str, Chain] = {
        f"{PREFIX}PREROUTING": (Rule(f"{PREFIX}DNAT", matches=(TO_NODE,), goto=True),),
        # Not for 127.0.0.0/8: such a packet leaves by a sliver's link only with route_localnet, which would let the
        # sliver reach services on the host's loopback.
        f"{PREFIX}OUTPUT": (Rule(f"{PREFIX}DNAT", destination="!127.0.0.0/8", matches=(TO_NODE,), goto=True),),
        f"{PREFIX}POSTROUTING": (
            Rule("MASQUERADE", source=pool, destination=f"!{pool}"),
            # For a public port, perhaps the sliver's own: the source must not be the sliver's own address.
            Rule("MASQUERADE", source=pool, destination=pool, matches=(DNATED,)),
        ),
        f"{PREFIX}DNAT": (
            Rule(f"{PREFIX}PORTS", protocol="tcp", goto=True),
            Rule(f"{PREFIX}PORTS", protocol="udp", goto=True),
        ),
        **dict(_by_port(f"{PREFIX}PORTS", 0, 1 << 16, blocks)),
    }
    jumps = tuple((builtin, PREFIX + builtin) for builtin in ("PREROUTING", "OUTPUT", "POSTROUTING"))
    return Table(False, "nat", jumps, chains)


# Every change needs the rules of all slivers and slices again: cached, each costs one lookup.


class _Block(NamedTuple):
    """The ports of one sliver, as plain values, because it is compared and hashed at every change."""

    first: int
    last: int
    address: str


# Without it each change makes one object a sliver, and the garbage collector then visits all of them.
_block = lru_cache(maxsize=1 << 12)(_Block)


def _port_rules(block: _Block) -> Iterator[Rule]:
    """DNAT of the lowest port to ssh, and of every other port to itself (a destination without a port keeps it)."""
    to_ssh = (("to-destination", f"{block.address}:{SSH}"),)
    for protocol in ("tcp", "udp"):  # iptables takes a port of a destination only with a protocol
        yield Rule("DNAT", to_ssh, protocol, matches=(Match(protocol, (("dport", str(block.first)),)),))
    if block.last > block.first:
        yield Rule("DNAT", (("to-destination", block.address),), matches=(_ports(block.first + 1, block.last),))


def _ports(first: int, last: int) -> Match:
    """The destination port of a new connection, for TCP and UDP alike: one tree serves both."""
    return Match("conntrack", (("ctorigdstport", str(first) if last == first else f"{first}:{last}"),))


@lru_cache(maxsize=4)
def _from_slice(target: str) -> Callable[[str], Rule]:
    return lru_cache(maxsize=1 << 12)(lambda tag: Rule(target, in_link=f"{names.link_prefix(tag)}+"))


@lru_cache(maxsize=4)
def _to_slice(target: str) -> Callable[[str], Rule]:
    return lru_cache(maxsize=1 << 12)(lambda tag: Rule(target, out_link=f"{names.link_prefix(tag)}+"))


@lru_cache(maxsize=1 << 12)
def _within_slice(tag: str) -> Rule:
    link = f"{names.link_prefix(tag)}+"
    return Rule("ACCEPT", in_link=link, out_link=link)


# 2000 slices use 1250 subtrees, and a smaller cache would lose each before its next use. Each change leaves one path
# behind, with a tuple of all tags.
@lru_cache(maxsize=1 << 11)
def _by_tag(
    name: str, tags: tuple[str, ...], rule: Callable[[str], Rule], depth: int = 0, into: bool = False
) -> tuple[tuple[str, Chain], ...]:
    """A tree over the characters of the sorted tags; a chain with more than LEAF slices is split by the next one.

    into: the rules match the outgoing link. Cached: a change of one slice changes one path from the root.
    """
    if len(tags) <= LEAF or depth == names.TAG_LENGTH:
        return ((name, tuple(rule(tag) for tag in tags)),)
    here: list[Rule] = []
    below: list[tuple[str, Chain]] = []
    base = name if depth else f"{name}-"
    for sign, same in itertools.groupby(tags, lambda tag: tag[depth]):
        group = tuple(same)
        if len(group) == 1:
            here.append(rule(group[0]))
            continue
        prefix = f"{names.MARK}{group[0][: depth + 1]}+"
        child = Rule(base + sign, goto=True)
        here.append(child._replace(out_link=prefix) if into else child._replace(in_link=prefix))
        below += _by_tag(base + sign, group, rule, depth + 1, into)
    return (*below, (name, tuple(here)))


@lru_cache(maxsize=1 << 9)  # each change of a block leaves one path from the root behind, with a tuple of all blocks
def _by_port(name: str, first: int, width: int, blocks: tuple[_Block, ...]) -> tuple[tuple[str, Chain], ...]:
    """A tree over the ports from `first` below `first + width`; a chain with more than LEAF sorted blocks is split.

    The boundaries do not depend on the published blocks, so a change affects one path only.
    """
    if len(blocks) <= LEAF or width < PORT_FANOUT:
        return ((name, tuple(rule for block in blocks for rule in _port_rules(block))),)
    here: list[Rule] = []
    below: list[tuple[str, Chain]] = []
    part = width // PORT_FANOUT
    for low in range(first, first + width, part):
        high = low + part - 1
        begin = bisect_left(blocks, low, key=lambda one: one.last)  # sorted by both ends, as blocks do not overlap
        inside = blocks[begin : bisect_right(blocks, high, key=lambda one: one.first)]
        if not inside:
            continue
        child = f"{PREFIX}PORTS-{low}-{high}"
        here.append(Rule(child, matches=(_ports(low, high),), goto=True))
        below += _by_port(child, low, part, inside)
    return (*below, (name, tuple(here)))

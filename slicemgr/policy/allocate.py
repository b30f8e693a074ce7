"""Allocate addresses, port blocks and id ranges for new slivers, all or nothing; errors name the exhausted resource.

The search starts after the last allocation (next fit), so that an address or a port that has just been freed is not
reused while clients still remember its predecessor. Pure: the caller holds the write transaction, and unique
constraints guarantee the result.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from slicemgr.config import LimitsConfig, NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, IDS_PER_SLIVER, MIB, Limits, PortBlock

# 0x70000000..0x7ffdffff is what systemd's "Users, Groups, UIDs and GIDs" leaves unused: beyond useradd's
# subordinate ids (up to 600100000), LXD's and Incus' (up to 1001000000) and systemd-nspawn's (up to
# 1879048191), below the foreign ids of systemd 257 (from 2147352576) and the sign bit. 4094 ranges of 65536.
UID_FIRST = 0x70000000
UID_RANGES = 0x7FFE0000 // IDS_PER_SLIVER - UID_FIRST // IDS_PER_SLIVER


@dataclass(frozen=True, slots=True)
class Cursors:
    """The start of the next search: offsets into the pools."""

    address: int = 0
    port: int = 0
    uid: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """The allocations of an existing sliver of the node."""

    address: str
    ports: PortBlock
    uid_first: int
    memory: int
    disk: int
    memory_guarantee: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """The node as its agent reports it. cpus, memory, disk: None if unknown."""

    name: str
    cpus: int | None
    memory: int | None
    disk: int | None


@dataclass(frozen=True, slots=True)
class Grant:
    """The allocations of a new sliver."""

    address: str
    ports: PortBlock
    uid_first: int


def allocate(
    network: NetworkConfig, given: Sequence[Given], cursors: Cursors, count: int, ports: int
) -> tuple[list[Grant], Cursors]:
    """The allocations of `count` new slivers with `ports` ports each. Refused(QUOTA) naming the exhausted resource."""
    pool = address_pool(network)
    first = int(pool[0])
    taken = {int(ipaddress.IPv4Address(one.address)) - first for one in given}
    addresses = next_fit(len(pool), taken, cursors.address, count)
    if addresses is None:
        raise exhausted("addresses", count, len(pool) - len(taken), f"the pool is {network.addresses}")
    blocks = port_blocks(network, [one.ports for one in given], cursors.port, count, ports)
    uids = next_fit(UID_RANGES, {(one.uid_first - UID_FIRST) // IDS_PER_SLIVER for one in given}, cursors.uid, count)
    if uids is None:
        raise exhausted("uid ranges", count, UID_RANGES - len(given), f"a node has {UID_RANGES}")
    grants = [
        Grant(str(pool[address]), block, UID_FIRST + uid * IDS_PER_SLIVER)
        for address, block, uid in zip(addresses, blocks, uids, strict=True)
    ]
    after = Cursors(addresses[-1] + 1, blocks[-1].last + 1 - network.ports_first, uids[-1] + 1)
    return grants, after


def ahead(network: NetworkConfig, cursors: Cursors, count: int, ports: int) -> tuple[list[Grant], Cursors] | None:
    """What `allocate` gives if all that follows the cursors is free; None if that is beyond the end of a pool."""
    pool, first = address_pool(network), network.ports_first + cursors.port
    after = Cursors(cursors.address + count, cursors.port + count * ports, cursors.uid + count)
    if after.address > len(pool) or after.uid > UID_RANGES or network.ports_first + after.port - 1 > network.ports_last:
        return None
    grants = [
        Grant(
            str(pool[cursors.address + number]),
            PortBlock(first + number * ports, ports),
            UID_FIRST + (cursors.uid + number) * IDS_PER_SLIVER,
        )
        for number in range(count)
    ]
    return grants, after


def address_pool(network: NetworkConfig) -> Sequence[ipaddress.IPv4Address]:
    """The pool's usable addresses: neither the network's nor the broadcast address, where it has them."""
    return _Hosts(ipaddress.IPv4Network(network.addresses))


class _Hosts(Sequence[ipaddress.IPv4Address]):
    """Equal to `list(network.hosts())`, computed lazily."""

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        edge = 1 if network.prefixlen < 31 else 0
        self._numbers = range(int(network.network_address) + edge, int(network.broadcast_address) + 1 - edge)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> ipaddress.IPv4Address:  # type: ignore[override]
        return ipaddress.IPv4Address(self._numbers[index])


def next_fit(size: int, taken: Collection[int], start: int, count: int) -> list[int] | None:
    """`count` free numbers below `size`, searched from `start` on, with wrap-around; None if there are fewer."""
    if size - len(taken) < count:
        return None
    found: list[int] = []
    for offset in range(size):
        number = (start + offset) % size
        if number not in taken:
            found.append(number)
            if len(found) == count:
                return found
    return None


def port_blocks(
    network: NetworkConfig, given: Iterable[PortBlock], cursor: int, count: int, size: int
) -> list[PortBlock]:
    """`count` free blocks of `size` consecutive ports; Refused(QUOTA) if there are fewer.

    Searched from the cursor on; if that is not enough, from the start of the pool, which finds every free block.
    """
    gaps = list(_gaps(network, given))
    start = network.ports_first + cursor
    ahead = [(max(first, start), last) for first, last in gaps if last >= start]
    behind = [(first, min(last, start - 1)) for first, last in gaps if first < start]
    found = _carve(ahead + behind, count, size)
    if len(found) < count:
        found = _carve(gaps, count, size)
    if len(found) < count:
        pool = f"the pool is {network.ports_first}..{network.ports_last}"
        raise exhausted(f"blocks of {size} ports", count, len(found), pool, "ports")
    return found


def _gaps(network: NetworkConfig, given: Iterable[PortBlock]) -> Iterator[tuple[int, int]]:
    """The free ranges of the pool, first and last port of each, in order."""
    free = network.ports_first
    for block in sorted(given, key=lambda block: block.first):
        if free < block.first:
            yield free, min(block.first - 1, network.ports_last)
        free = max(free, block.last + 1)
    if free <= network.ports_last:
        yield free, network.ports_last


def _carve(gaps: Iterable[tuple[int, int]], count: int, size: int) -> list[PortBlock]:
    found: list[PortBlock] = []
    for first, last in gaps:
        fitting = min(max(0, last - first + 1) // size, count - len(found))
        found.extend(PortBlock(first + number * size, size) for number in range(fitting))
    return found


def check_capacity(node: Node, limits: LimitsConfig, given: Sequence[Given], count: int, wanted: Limits) -> None:
    """Refused(QUOTA) if a sliver is larger than the node, or all limits together exceed the allowed overcommitment.

    Guarantees of memory are never overcommitted: together they are at most what the node has beside its reserve.
    """
    for name, total, one, used, overcommit in (
        ("memory", node.memory, wanted.memory, sum(one.memory for one in given), limits.memory_overcommit),
        ("disk", node.disk, wanted.disk, sum(one.disk for one in given), limits.disk_overcommit),
    ):
        if total is None:
            continue
        if one > total:
            raise Refused(
                Code.QUOTA,
                f"{size_text(one)} of {name} exceed the capacity of node {node.name}",
                hint=f"it has {size_text(total)}",
                field=name,
            )
        left = max(0, int(total * overcommit) - used)
        if one * count > left:
            raise Refused(
                Code.QUOTA,
                f"not enough {name} on node {node.name}: "
                f"{size_text(one * count)} requested, {size_text(left)} available",
                hint="delete unused slices, or request less",
                field=name,
            )
    if wanted.memory_guarantee and (most := guaranteed(node.memory, limits)) is not None:
        left = max(0, most - sum(one.memory_guarantee for one in given))
        if wanted.memory_guarantee * count > left:
            raise Refused(
                Code.QUOTA,
                f"not enough memory to guarantee on node {node.name}: "
                f"{size_text(wanted.memory_guarantee * count)} requested, {size_text(left)} available",
                hint=f"guarantees may be {size_text(most)} in all; delete unused slices, or request less",
                field="memory_guarantee",
            )


def guaranteed(memory: int | None, limits: LimitsConfig) -> int | None:
    """The sum of the guarantees that a node with this memory can keep; None if the memory is unknown."""
    return None if memory is None else max(0, memory - limits.memory_reserve.bytes)


def exhausted(what: str, wanted: int, left: int, pool: str, field: str = "count") -> Refused:
    return Refused(
        Code.QUOTA,
        f"not enough {what}: {wanted} requested, {left} available",
        hint=f"{pool}; delete unused slices, or request less",
        field=field,
    )


def size_text(size: int) -> str:
    """A number of bytes as text, rounded down."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size // MIB} MiB"

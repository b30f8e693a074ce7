"""Choose the nodes of new slivers: those that can run them and have room, the least committed first. Pure.

Each node that is not used has a reason, which dry runs and errors show.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from slicemgr.config import LimitsConfig, NetworkConfig
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Boot, Init, Limits, Machine, PortBlock, SliceSpec, SliverType, Spread
from slicemgr.policy import allocate

SILENT = timedelta(seconds=90)  # since the last report of an agent, which are 30 s apart; its node gets no new slivers
IMAGE_THERE = 0.1  # the share of a node's capacity that an image that is there already outweighs
_MOST_REASONS = 5  # nodes whose reasons an error has
_IMAGES = {"x86_64": ("x86_64", "i686")}  # the architectures of images that a node can run, by its own


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node with its own pools, as it last reported, and what its slivers have been allocated.

    silent: the time since the last report of its agent, None: it has never reported. image: whether it has the image.
    trouble: why it cannot be used; "": it can.
    """

    name: str
    facts: Mapping[str, Any]
    network: NetworkConfig
    site: str = ""
    drained: bool = False
    silent: timedelta | None = timedelta(0)
    slivers: int = 0
    memory: int = 0
    memory_guarantee: int = 0
    disk: int = 0
    ports: int = 0
    image: bool = False
    trouble: str = ""

    @property
    def capacity(self) -> allocate.Node:
        def number(name: str) -> int | None:
            value = self.facts.get(name)
            return int(value) if isinstance(value, int | float) else None

        return allocate.Node(self.name, number("cpus"), number("memory"), number("disk_total"))


@dataclass(frozen=True, slots=True)
class Choice:
    """The node of each sliver, by its index, and why other nodes were not used."""

    nodes: tuple[str, ...]
    refused: Mapping[str, Refused]


Refusals = dict[str, Refused]


class Unread(Exception):
    """A node that was not read may be the one to choose."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """What bounds the nodes of a group that were not read: they have less room, or as much and are not preferred.

    group: their site where slivers spread over sites, else ""; None: all sites of which no node was read. committed:
    their share, less what an image that is there outweighs.
    """

    group: str | None
    room: int
    committed: float
    name: str


def able(
    candidates: Sequence[Candidate], spec: SliceSpec, apart: Collection[str] = ()
) -> tuple[list[Candidate], Refusals]:
    """The nodes that can run slivers of the specification, and the reasons against the others.

    apart: the names of nodes that the slice shall not use. Refused if no node can run them.
    """
    where = spec.where
    for name in where.nodes:
        if name not in {one.name for one in candidates}:
            raise invalid("node", f"{name!r} is unknown", f"the nodes are {_names(one.name for one in candidates)}")
    sites = {one.site for one in candidates if one.site}
    if where.site and where.site not in sites:
        raise invalid("site", f"{where.site!r} is unknown", f"the sites are {_names(sites) or '-'}")
    fit, refused = [], {}
    for one in candidates:
        if (reason := _refusal(one, spec, apart, alone=len(candidates) == 1)) is None:
            fit.append(one)
        else:
            refused[one.name] = reason
    if not fit:
        raise _nowhere(spec, refused, Code.UNAVAILABLE, "no node can run the slivers")
    return fit, refused


def _refusal(one: Candidate, spec: SliceSpec, apart: Collection[str], *, alone: bool) -> Refused | None:
    """alone: there is no other node, so the slivers wait until its agent reports."""
    where = spec.where
    if where.nodes and one.name not in where.nodes:
        return invalid("node", f"node {one.name} was not requested")
    if where.site and one.site != where.site:
        return invalid("site", f"node {one.name} is at {f'site {one.site}' if one.site else 'no site'}")
    if one.name in apart:
        return Refused(Code.CONFLICT, f"node {one.name} has slivers of slice {where.apart}", field="apart")
    if one.drained:
        hint = "an admin ends that with `slicectl node undrain`"
        return Refused(Code.UNAVAILABLE, f"node {one.name} is drained", hint=hint, field="node")
    if not alone and (one.silent is None or one.silent > SILENT):
        since = "never" if one.silent is None else f"not for {int(one.silent.total_seconds())} s"
        return Refused(Code.UNAVAILABLE, f"node {one.name} has {since} reported", field="node")
    if one.trouble:
        return Refused(Code.UNAVAILABLE, f"node {one.name} cannot be used: {one.trouble}", field="node")
    try:
        check_able(one, spec)
    except Refused as error:
        return error
    return None


def check_capacity(node: Candidate, limits: LimitsConfig, count: int, wanted: Limits) -> None:
    """Refused(QUOTA) unless the node has memory and disk left for `count` slivers; see `allocate.check_capacity`."""
    used = allocate.Given("", PortBlock(0, 0), 0, node.memory, node.disk, node.memory_guarantee)
    allocate.check_capacity(node.capacity, limits, [used], count, wanted)


def check_able(node: Candidate, spec: SliceSpec) -> None:
    """Refused unless the node supports everything that the specification needs."""
    types = node.facts.get("kinds", {})
    if not types.get(spec.type.value, False):
        supported = [one.value for one in SliverType if types.get(one.value)]
        reason = node.facts.get("kinds_reason", {}).get(spec.type.value, f"its libvirt does not support {spec.type}")
        hint = f"supported types: {', '.join(supported) or '-'}"
        raise invalid("type", f"node {node.name} cannot run {spec.type}: {reason}", hint)
    cpus = node.capacity.cpus
    if cpus is not None and spec.limits.cpu > cpus:
        message = f"{spec.limits.cpu:g} CPU cores exceed the capacity of node {node.name}"
        raise invalid("cpu", message, f"at most {cpus}")
    if spec.boot is Boot.UEFI and not node.facts.get("uefi", False):
        raise invalid("boot", f"node {node.name} has no UEFI firmware", "install the package ovmf on the node")
    if spec.machine is Machine.THIN and not node.facts.get("machines", {}).get(Machine.THIN.value, False):
        reason = node.facts.get("machines_reason", "its agent is of an earlier version")
        raise invalid("machine", f"node {node.name} cannot run thin machines: {reason}", "use standard")
    most = spec.limits.memory_max
    if most is not None and not node.facts.get("memory_max", False):
        reason = node.facts.get("memory_max_reason", "its agent is of an earlier version")
        message = f"node {node.name} cannot give memory to running virtual machines: {reason}"
        raise invalid("memory_max", message, "omit this field")
    memory = node.capacity.memory
    if most is not None and memory is not None and most > max(memory, spec.limits.memory):
        message = f"{allocate.size_text(most)} exceed the memory of node {node.name}"
        raise invalid("memory_max", message, f"at most {allocate.size_text(memory)}")
    if spec.init is Init.SYSTEMD and not node.facts.get("inits", {}).get(Init.SYSTEMD.value, False):
        reason = node.facts.get("inits_reason", "its agent is of an earlier version")
        raise invalid("init", f"node {node.name} cannot run systemd in containers: {reason}", "use minimal")
    if spec.limits.io_weight is not None and not node.facts.get("io_weight", False):
        reason = "its kernel has no I/O controller that supports weights"
        raise invalid("io_weight", f"node {node.name} does not support this: {reason}", "omit this field")
    for name in ("net_in", "net_out"):
        if getattr(spec.limits, name) is not None and not node.facts.get("net_rate", False):
            lacks = ", ".join(node.facts.get("net_rate_missing", ())) or "support for rate limits"
            raise invalid(name, f"node {node.name} does not support this: its kernel lacks {lacks}", "omit this field")


def of_architecture(nodes: Iterable[Candidate], spec: SliceSpec, image: str, refused: Refusals) -> list[Candidate]:
    """The nodes that can run an image of this architecture; the reasons against the others are added to `refused`.

    Refused if there is none.
    """
    fit = []
    for one in nodes:
        machine = str(one.facts.get("machine", "x86_64"))
        if not image or image in _IMAGES.get(machine, (machine,)):
            fit.append(one)
        else:
            refused[one.name] = invalid("image", f"node {one.name} has the architecture {machine}, the image {image}")
    if not fit:
        raise _nowhere(spec, refused, Code.UNAVAILABLE, "no node can run the image")
    return fit


@dataclass(slots=True)
class _Slot:
    """A node with room for `left` more slivers; given: those that it has got."""

    node: Candidate
    left: int
    given: int = 0


def choose(
    nodes: Sequence[Candidate],
    spec: SliceSpec,
    limits: LimitsConfig,
    refused: Mapping[str, Refused] | None = None,
    beyond: Sequence[Beyond] = (),
) -> Choice:
    """A node for each sliver. refused: the reasons against the nodes that are not in `nodes`.

    Refused(QUOTA) unless all slivers have room. A single node is not checked here: `allocate` names what it lacks.
    beyond: the nodes that were not read; Unread if one of these may be the one to choose.
    """
    reasons, slots = dict(refused or {}), []
    for one in nodes:
        room, reason = _room(one, spec, limits)
        if room:
            slots.append(_Slot(one, room))
        elif reason is not None:
            reasons[one.name] = reason
    if spec.where.each:
        return _each(slots, spec, reasons)
    if not beyond and sum(slot.left for slot in slots) < spec.count:
        reasons |= {slot.node.name: _short(slot) for slot in slots}
        raise _nowhere(spec, reasons, Code.QUOTA, f"the nodes have room for {sum(slot.left for slot in slots)} of them")
    chosen = _spread(slots, spec, limits, beyond)
    for slot in slots:
        if not slot.given:
            reasons[slot.node.name] = Refused(
                Code.CONFLICT, f"node {slot.node.name} is not needed: others are preferred"
            )
    return Choice(chosen, reasons)


def _room(one: Candidate, spec: SliceSpec, limits: LimitsConfig) -> tuple[int, Refused | None]:
    """The number of slivers for which the node has room, at most `count`, and what it lacks if that is 0."""
    try:
        check_capacity(one, limits, 1, spec.limits)
    except Refused as error:
        return 0, error
    capacity, network = one.capacity, one.network
    counts = [spec.count]
    for total, each, committed, overcommit in (
        (capacity.memory, spec.limits.memory, one.memory, limits.memory_overcommit),
        (capacity.disk, spec.limits.disk, one.disk, limits.disk_overcommit),
        (allocate.guaranteed(capacity.memory, limits), spec.limits.memory_guarantee, one.memory_guarantee, 1.0),
    ):
        if total is not None and each:
            counts.append((int(total * overcommit) - committed) // each)
    blocks = (network.ports_last - network.ports_first + 1 - one.ports) // spec.ports
    addresses = len(allocate.address_pool(network)) - one.slivers
    for what, left in ((f"blocks of {spec.ports} ports", blocks), ("addresses", addresses)):
        if left < 1:
            return 0, Refused(Code.QUOTA, f"node {one.name} has no {what} left", field="count")
    return min(*counts, blocks, addresses, allocate.UID_RANGES - one.slivers), None


def _each(slots: Sequence[_Slot], spec: SliceSpec, reasons: Refusals) -> Choice:
    """The nodes that the specification gives for each sliver."""
    left = {slot.node.name: slot for slot in slots}
    for name, count in Counter(spec.where.each).items():
        if name not in left:
            unknown = Refused(Code.UNAVAILABLE, f"node {name} is not available", field="node")
            raise reasons.get(name, unknown)
        if left[name].left < count:
            raise _short(left[name])
    return Choice(spec.where.each, reasons)


def _spread(slots: Sequence[_Slot], spec: SliceSpec, limits: LimitsConfig, beyond: Sequence[Beyond]) -> tuple[str, ...]:
    """Each sliver goes to the preferred node of the group (site, or all nodes) that has got the fewest."""
    spread = spec.where.spread
    heaps: dict[str | None, list[tuple[Any, int]]] = defaultdict(list)
    for number, slot in enumerate(slots):
        heaps[slot.node.site if spread is Spread.SITE else ""].append((_preference(slot, spec, limits), number))
    for one in beyond:
        heaps[one.group].append((_order(spread, 0, one.room, one.committed, one.name), len(slots)))
    for heap in heaps.values():
        heapq.heapify(heap)
    given, chosen = Counter[str | None](), []
    for _ in range(spec.count):
        group = min((name for name in heaps if heaps[name]), key=lambda name: (given[name], heaps[name][0]))
        _, number = heapq.heappop(heaps[group])
        if number == len(slots):
            raise Unread
        slot = slots[number]
        slot.given, slot.left = slot.given + 1, slot.left - 1
        given[group] += 1
        chosen.append(slot.node.name)
        if slot.left:
            heapq.heappush(heaps[group], (_preference(slot, spec, limits), number))
    return tuple(chosen)


def _preference(slot: _Slot, spec: SliceSpec, limits: LimitsConfig) -> tuple[Any, ...]:
    """The smallest one is used first."""
    node = slot.node
    committed = share(node, limits, slot.given, spec) - (IMAGE_THERE if node.image else 0.0)
    return _order(spec.where.spread, slot.given, slot.left, committed, node.name)


def _order(spread: Spread, given: int, left: int, committed: float, name: str) -> tuple[Any, ...]:
    if spread is Spread.PACK:
        return (given == 0, -left if given == 0 else 0, committed, name)
    return (given, committed, name)


def share(node: Candidate, limits: LimitsConfig, more: int, spec: SliceSpec) -> float:
    """The committed part of the node's scarcest resource (0 to 1) with `more` slivers of the specification."""
    capacity, network = node.capacity, node.network
    shares = [(node.ports + more * spec.ports) / (network.ports_last - network.ports_first + 1)]
    if capacity.memory:
        shares.append((node.memory + more * spec.limits.memory) / (capacity.memory * limits.memory_overcommit))
    if most := allocate.guaranteed(capacity.memory, limits):
        shares.append((node.memory_guarantee + more * spec.limits.memory_guarantee) / most)
    if capacity.disk:
        shares.append((node.disk + more * spec.limits.disk) / (capacity.disk * limits.disk_overcommit))
    return max(shares)


def _short(slot: _Slot) -> Refused:
    noun = "sliver" if slot.left == 1 else "slivers"
    return Refused(Code.QUOTA, f"node {slot.node.name} has room for {slot.left} {noun} only", field="count")


def _nowhere(spec: SliceSpec, refused: Mapping[str, Refused], code: Code, message: str) -> Refused:
    """The error for slivers without nodes: of a single node its reason, of several the first reasons."""
    asked = [reason for name, reason in refused.items() if not spec.where.nodes or name in spec.where.nodes]
    if len(asked) == 1:
        return asked[0]
    texts = [reason.message for reason in asked[:_MOST_REASONS]]
    more = [] if len(asked) <= _MOST_REASONS else [f"and {len(asked) - _MOST_REASONS} others"]
    fields = {reason.field for reason in asked}
    field = fields.pop() if len(fields) == 1 else ""
    noun = "a sliver" if spec.count == 1 else f"{spec.count} slivers"
    return Refused(code, f"{message} ({noun} requested)", hint="; ".join([*texts, *more]), field=field)


def _names(names: Iterable[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:10]) + (" and others" if len(shown) > 10 else "")

"""Choose the nodes of a new slice, its image, and addresses, ports and uid ranges of its slivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Boot, PortBlock, SliceSpec, Where
from slicemgr.policy import allocate, placement, quota
from slicemgr.policy.placement import Beyond, Candidate, Choice, Refusals
from slicemgr.policy.quota import Quota
from slicemgr.service.nodes import nodes, preselection
from slicemgr.service.nodes.nodes import NodeRow
from slicemgr.service.projects import projects
from slicemgr.service.slices import image_choice, spares
from slicemgr.store import tables as t

_NAMED = (  # made once: to make it takes longer than to execute it
    sa.select(t.slices.c.id).where(
        t.slices.c.project == sa.bindparam("project"), t.slices.c.name == sa.bindparam("name")
    )
)
_MORE = 8, 80  # nodes that are read beyond those that are needed, some of which cannot run the slivers: two attempts
_AT_ONCE = 50  # nodes in one query
_Allocated = dict[str, tuple[list[allocate.Grant], allocate.Cursors]]


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen nodes and the allocations of a slice.

    nodes, grants: of each sliver, by its index. addresses: of each chosen node. cursors: of each chosen node, after the
    allocation. elsewhere: why the other nodes were not chosen; without `reasons`, of some of them. spare: the sliver
    that is taken instead of making one; "": none.
    """

    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    image: str  # sha256
    image_name: str
    boot: Boot
    grants: tuple[allocate.Grant, ...]
    cursors: Mapping[str, allocate.Cursors]
    elsewhere: Mapping[str, Refused]
    spare: str = ""


def place(
    c: Connection,
    config: Config,
    spec: SliceSpec,
    allowed: Quota | None = None,
    hint: str = quota.REQUEST_HINT,
    *,
    reasons: bool = False,
) -> Placement:
    """Choose the nodes and allocate resources for each sliver. Refused if the request cannot be met.

    allowed: the limits to check, such as the project's ceiling, by default its quota. hint: of OverQuota. reasons:
    whether the reasons against other nodes are wanted, for which all nodes are examined.
    """
    projects.check_exists(c, spec.project)
    if c.scalar(_NAMED, {"project": spec.project, "name": spec.name}) is not None:
        raise Refused(Code.CONFLICT, f"there is already a slice {spec.name!r}", hint="choose another", field="name")
    image, apart = image_choice.find(c, spec.image, spec.project), _apart(c, spec)
    if (spare := _spare(c, config, spec, image)) is not None:
        _check_quota(c, spec, allowed, hint)
        return spare
    found = None if reasons else _of_few(c, config, spec, image, apart)
    rows = nodes.every(c, config, image.sha256, image_choice.needed(image, spec)) if found is None else found.rows
    fit, refused = ([], {}) if found else placement.able([row.candidate for row in rows.values()], spec, apart)
    boot = image_choice.check(image, spec)
    if found is None:
        fit = placement.of_architecture(fit, spec, image.arch, refused)
    _check_quota(c, spec, allowed, hint)
    return (found or _Chosen(rows, *_allocate(c, config, spec, rows, fit, refused))).placement(image, boot)


def _check_quota(c: Connection, spec: SliceSpec, allowed: Quota | None, hint: str) -> None:
    """Refused(QUOTA) beyond the limits to check; see `place`."""
    most, limit = (
        (projects.limits(c, spec.project), "project quota") if allowed is None else (allowed, "project ceiling")
    )
    quota.check(most, projects.used(c, spec.project), quota.wanted(spec), spec.lease, hint=hint, limit=limit)


def _spare(c: Connection, config: Config, spec: SliceSpec, image: Row[*tuple[Any, ...]]) -> Placement | None:
    """The placement that takes a spare, if one fits."""
    for one in spares.find(c, config, spec, image.sha256):
        if one.boot == (boot := image_choice.check(image, spec)):
            grant = allocate.Grant(one.sliver_address, PortBlock(one.port_first, one.port_count), one.uid_first)
            there = {one.name: one.address}
            return Placement((one.name,), there, image.sha256, image.name, boot, (grant,), {}, {}, one.sliver)
    return None


@dataclass(frozen=True, slots=True)
class _Chosen:
    rows: Mapping[str, NodeRow]
    choice: Choice
    allocated: _Allocated

    def placement(self, image: Row[*tuple[Any, ...]], boot: Boot) -> Placement:
        order = {name: iter(grants) for name, (grants, _) in self.allocated.items()}
        return Placement(
            nodes=self.choice.nodes,
            addresses={name: self.rows[name].address for name in self.allocated},
            image=image.sha256,
            image_name=image.name,
            boot=boot,
            grants=tuple(next(order[name]) for name in self.choice.nodes),
            cursors={name: cursors for name, (_, cursors) in self.allocated.items()},
            elsewhere=self.choice.refused,
        )


def _of_few(
    c: Connection, config: Config, spec: SliceSpec, image: Row[*tuple[Any, ...]], apart: Collection[str]
) -> _Chosen | None:
    """The choice from the few best nodes by their counters, if it is the one that all nodes give; else None."""
    if spec.where.nodes and not nodes.exist(c, spec.where.nodes):
        return None
    wanted = preselection.Wanted(spec, image.sha256, image_choice.needed(image, spec), frozenset(apart))
    for more in _MORE:
        few = preselection.select(c, config, wanted, spec.count + more)
        try:
            fit, refused = placement.able([row.candidate for row in few.rows.values()], replace(spec, where=Where()))
            fit = placement.of_architecture(fit, spec, image.arch, refused)
            choice, allocated = _allocate(c, config, spec, few.rows, fit, refused, few.beyond)
            return _Chosen(few.rows, choice, allocated)
        except (Refused, placement.Unread):
            if not few.beyond:
                break
    return None


def place_again(c: Connection, config: Config, spec: SliceSpec, lost: str) -> Placement:
    """Choose nodes for slivers that exist, whose node is lost, and allocate for them there. Refused without a place.

    spec: of these slivers; its image by sha256. Quotas count them already.
    """
    image = image_choice.find(c, spec.image, spec.project)
    found = _of_few(c, config, spec, image, {lost})
    if found is None:
        rows = nodes.every(c, config, image.sha256, image_choice.needed(image, spec))
        candidates = [row.candidate for row in rows.values()]
        candidates = [replace(one, trouble="it is lost") if one.name == lost else one for one in candidates]
        fit, refused = placement.able(candidates, spec)
        fit = placement.of_architecture(fit, spec, image.arch, refused)
        found = _Chosen(rows, *_allocate(c, config, spec, rows, fit, refused))
    return found.placement(image, spec.boot)


def _apart(c: Connection, spec: SliceSpec) -> set[str]:
    """The nodes of the slice from which the new one shall be apart. Refused(INVALID) if the project has none."""
    if not spec.where.apart:
        return set()
    project, _, name = spec.where.apart.rpartition("/")
    l, s = t.slices.c, t.slivers.c
    query = sa.select(s.node).join(t.slices, l.id == s.slice).where(l.project == spec.project, l.name == name)
    found = set(c.scalars(query)) if project in ("", spec.project) else set()
    if not found:
        message = f"project {spec.project} has no slice {spec.where.apart[:80]!r}"
        raise invalid("apart", message, "list the slices with `slicectl list`")
    return found


def _allocate(
    c: Connection,
    config: Config,
    spec: SliceSpec,
    rows: Mapping[str, NodeRow],
    fit: list[Candidate],
    refused: Refusals,
    beyond: Sequence[Beyond] | None = None,
) -> tuple[Choice, _Allocated]:
    """The nodes of the slivers, and the allocations on each. The free ports of a node may be too scattered for the
    blocks: then others are tried. beyond: if only some nodes were read, what bounds the others; Unread if one of these
    may be the one to choose.
    """
    fit, refused = list(fit), dict(refused)
    while True:
        only = beyond is None and len(fit) == 1 and set(spec.where.each) <= {fit[0].name}
        if only:  # the allocation names exactly what is missing
            choice = Choice((fit[0].name,) * spec.count, refused)
        else:
            choice = placement.choose(fit, spec, config.limits, refused, beyond or ())
        allocated: _Allocated = {}
        counts = Counter(choice.nodes)
        ahead = _ahead(c, rows, counts, spec.ports)
        for name, count in counts.items():
            candidate = rows[name].candidate
            try:
                placement.check_capacity(candidate, config.limits, count, spec.limits)
                allocated[name] = ahead.get(name) or allocate.allocate(
                    candidate.network, nodes.given(c, name), rows[name].cursors, count, spec.ports
                )
            except Refused as error:
                if only or spec.where.each:
                    raise
                refused[name] = error
                fit = [one for one in fit if one.name != name]
                break
        else:
            return choice, allocated


def _ahead(c: Connection, rows: Mapping[str, NodeRow], counts: Mapping[str, int], ports: int) -> _Allocated:
    """What follows the cursors of each node, where all of it is free. Elsewhere all its allocations are to be read."""
    found = {
        name: after
        for name, count in counts.items()
        if (after := allocate.ahead(rows[name].candidate.network, rows[name].cursors, count, ports)) is not None
    }
    names, taken = list(found), set[str]()
    for first in range(0, len(names), _AT_ONCE):
        some = {name: found[name][0] for name in names[first : first + _AT_ONCE]}
        taken.update(c.scalars(_taken(some)))
    return {name: after for name, after in found.items() if name not in taken}


def _taken(given: Mapping[str, list[allocate.Grant]]) -> sa.CompoundSelect[Any]:
    """The nodes of which a sliver has a part of these allocations, by node; their ports are consecutive."""
    s, p = t.slivers.c, t.ports.c
    found = {s.address: list[Any](), s.uid_first: list[Any](), p.port: list[Any]()}
    for node, grants in given.items():
        found[s.address].append(sa.and_(s.node == node, s.address.in_([one.address for one in grants])))
        found[s.uid_first].append(sa.and_(s.node == node, s.uid_first.in_([one.uid_first for one in grants])))
        ports = p.port.between(grants[0].ports.first, grants[-1].ports.last)
        found[p.port].append(sa.and_(p.node == node, ports))
    return sa.union_all(*(sa.select(column.table.c.node).where(sa.or_(*some)) for column, some in found.items()))

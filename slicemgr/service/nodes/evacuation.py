"""Make the slivers of a node that is lost again from their images, on other nodes.

Each gets another address, other ports, another host key and the next epoch. If the lost node returns, its agent finds
that it no longer has them: see agent.fence. Each slice is one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import (
    Desired,
    OnLoss,
    OperationState,
    Phase,
)
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import membership, nodes, operations
from slicemgr.service.slices import placement, sliver_rows, specs
from slicemgr.store import Store, allocations, incarnation, observations
from slicemgr.store import tables as t
from slicemgr.store.operation_parts import ENDED
from slicemgr.store.updates import OperationEnded, SliverDone, SliverGone, utcnow

KIND = "rebuild"
_FRESH = {  # of a sliver that its node has not made yet
    "phase": Phase.PENDING,
    "error": "",
    "host_key": "",
    "acceleration": "",
    "booted": "",
    "keys_missing": "",
    "memory_started": 0,
    **dict.fromkeys(("usage_working", "usage_charged", "usage_disk", "guest_memory", "usage_at")),
    "origin": "",
    "inherited": 0,
}
_Row = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Left:
    """A slice whose slivers remain on the lost node, and why."""

    project: str
    slice: str
    reason: Refused


@dataclass(frozen=True, slots=True)
class Evacuated:
    """operations: their ids, one for each slice that is rebuilt."""

    operations: tuple[str, ...]
    left: tuple[Left, ...]


def evacuate(store: Store, config: Config, name: str, by: Principal, *, lost: bool = False) -> Evacuated:
    """Rebuild all slivers of a node elsewhere. lost: the admin states that a node which is only silent is lost.

    Refused(NOT_FOUND), Refused(CONFLICT) if the node reports, or is not lost yet.
    """
    access.change_nodes(by, "evacuate nodes")
    with store.write() as c:
        _check_lost(c, name, confirmed=lost)
        operations.note(c, by.user, "node evacuate", utcnow(), detail=name, address=by.address)
        found = _slices(c, name)
    made, left = [], []
    for row in found:
        try:
            with store.write() as c:
                _check_lost(c, name, confirmed=lost)
                made.append(_rebuild(c, config, name, row, by.user, by.address))
        except Refused as error:
            left.append(Left(row.project, row.name, error))
    if not left:
        with suppress(Refused), store.write() as c:  # Refused: it has just returned
            _check_lost(c, name, confirmed=lost)
            s, p = t.slivers.c, t.spares.c
            spares = c.scalars(sa.select(s.id).join(t.spares, p.sliver == s.id).where(s.node == name))
            _end_parts(c, name, None, list(spares))
    wake(config.wake_socket)
    return Evacuated(tuple(filter(None, made)), tuple(left))


def rebuild_lost(store: Store, config: Config) -> list[Left]:
    """Rebuild the slivers on lost nodes of the slices for which that was requested. Returns those without a place."""
    n, l, s = t.nodes.c, t.slices.c, t.slivers.c
    with store.read() as c:
        if incarnation.held(c) is not None:
            return []
        query = sa.select(n.name).distinct().join(t.slivers, s.node == n.name).join(t.slices, l.id == s.slice)
        lost = list(c.scalars(query.where(n.lost, n.identity.is_not(None), l.on_loss == OnLoss.REBUILD)))
        found = [(name, row) for name in lost for row in _slices(c, name) if row.on_loss == OnLoss.REBUILD]
    left = []
    for name, row in found:
        try:
            with store.write() as c:
                _check_lost(c, name, confirmed=False)
                _rebuild(c, config, name, row, "agent", "")
        except Refused as error:
            left.append(Left(row.project, row.name, error))
    if found:
        wake(config.wake_socket)
    return left


def _slices(c: Connection, node: str) -> list[_Row]:
    """The slices with slivers on the node."""
    l, s = t.slices.c, t.slivers.c
    mine = l.id.in_(sa.select(s.slice).where(s.node == node))
    return list(c.execute(sa.select(t.slices).where(mine).order_by(l.project, l.name)).all())


def _check_lost(c: Connection, name: str, *, confirmed: bool) -> None:
    incarnation.refuse_during_hold(c, "evacuate nodes")
    row = membership.find(c, name)
    if row.identity is None:
        hint = "only a host that has joined can be evacuated: its agent stops its slivers when it returns"
        raise Refused(Code.CONFLICT, f"the agent of node {name} uses the database itself", hint=hint)
    if row.silent_since is None:
        hint = "`slicectl node drain` keeps new slivers away from a node that works"
        raise Refused(Code.CONFLICT, f"node {name} reports", hint=hint)
    if not (row.lost or confirmed):
        since = f"{row.silent_since:%Y-%m-%dT%H:%M:%SZ}"
        hint = "wait until it has not reported for 5 minutes, or confirm with --lost that its host does not return"
        raise Refused(Code.CONFLICT, f"node {name} is not lost yet: it reported at {since}", hint=hint, field="lost")


def _rebuild(c: Connection, config: Config, node: str, head: _Row, user: str, address: str) -> str:
    """The operation for the slivers of a slice on the node, "" if all were to be deleted. Refused without a place."""
    s = t.slivers.c
    of_slice = sa.and_(s.slice == head.id, s.node == node)
    slivers = c.execute(sa.select(t.slivers).where(of_slice).order_by(s.idx)).all()
    wanted = [one for one in slivers if one.desired != Desired.ABSENT]
    _end_parts(c, node, head.id, [one.id for one in slivers if one.desired == Desired.ABSENT])
    if not wanted:
        return ""
    placed = placement.place_again(c, config, specs.of_rows(head, wanted), node)
    now = utcnow()
    which = s.id.in_([one.id for one in wanted])
    allocations.free(c, which)
    _forget_snapshots(c, [one.id for one in wanted])
    for row, where, grant in zip(wanted, placed.nodes, placed.grants, strict=True):
        c.execute(t.ports.delete().where(t.ports.c.sliver == row.serial))
        c.execute(t.consoles.delete().where(t.consoles.c.sliver == row.id))
        place = {"node": where, **sliver_rows.granted(grant)}
        values = {**_FRESH, **place, "epoch": row.epoch + 1, "updated_at": now}
        c.execute(t.slivers.update().where(s.id == row.id).values(values))
        numbers = range(grant.ports.first, grant.ports.last + 1)
        c.execute(t.ports.insert(), [{"node": where, "port": port, "sliver": row.serial} for port in numbers])
    allocations.take(c, which)
    nodes.move_cursors(c, placed.cursors)
    given = {one.id: place for one, place in zip(wanted, placed.nodes, strict=True)}
    subject = operations.Subject("", head.id, head.name, placed.image, placed.image_name, given, head.project)
    noun = "sliver" if len(wanted) == 1 else "slivers"
    detail = f"{len(wanted)} {noun} of the lost node {node}, from the image"
    about = {"slice": head.name, "project": head.project, "address": address}
    operations.note(c, user, KIND, now, detail=detail, **about)
    return operations.add(c, KIND, subject, user, now, {"lost": node})


def _end_parts(c: Connection, node: str, slice_id: str | None, absent: Sequence[str]) -> None:
    """End what the node still has to do for the slice, None: for anything. absent: slivers that it does not have."""
    o, p, m = t.operations.c, t.operation_parts.c, t.operation_slivers.c
    pending = sa.select(o.id, o.kind).join(t.operation_parts, p.operation == o.id)
    pending = pending.where(p.node == node, p.state.not_in(ENDED))
    if slice_id is not None:
        pending = pending.where(o.slice_id == slice_id)
    error, hint = f"node {node} was lost", "its slivers are made again on other nodes"
    updates: list[SliverDone | SliverGone | OperationEnded] = [SliverGone(one) for one in absent]
    for row in c.execute(pending).all():
        deleted = row.kind == "delete"
        state = OperationState.DONE if deleted else OperationState.FAILED
        mine = sa.select(m.sliver).where(m.operation == row.id, m.node == node, m.state.not_in(ENDED))
        updates += [SliverDone(row.id, one, state) for one in c.scalars(mine)]
        updates.append(OperationEnded(row.id, state, "" if deleted else error, "" if deleted else hint))
    observations.record(c, updates, node)


def _forget_snapshots(c: Connection, slivers: Sequence[str]) -> None:
    """Snapshots of these slivers were on the lost node; one that no sliver has is gone."""
    k, n = t.sliver_snapshots.c, t.snapshots.c
    snapshots = list(c.scalars(sa.select(k.snapshot).where(k.sliver.in_(slivers)).distinct()))
    c.execute(t.sliver_snapshots.delete().where(k.sliver.in_(slivers)))
    left = sa.exists().where(k.snapshot == n.id)
    c.execute(t.snapshots.delete().where(n.id.in_(snapshots), ~left))

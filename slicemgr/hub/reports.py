"""Apply what nodes report, in one transaction for all that arrived: only then is it acknowledged."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr.hub import inventories
from slicemgr.hub.allowance import Allowance
from slicemgr.hub.updates import accepted
from slicemgr.model import NodeState
from slicemgr.policy.messages import Applied, Beat, Inventory, Updates
from slicemgr.service.nodes import operations
from slicemgr.store import Store, allocations, incarnation, observations
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """identity: of the queue in which the broker put it, never of its content."""

    identity: str
    message: Beat | Updates | Inventory


def members(store: Store) -> set[str]:
    """The identities of nodes that may connect: with a certificate that is valid and not revoked."""
    n, k = t.nodes.c, t.certificates.c
    valid = sa.exists().where(k.identity == n.identity, k.revoked_at.is_(None), k.expires_at > utcnow())
    with store.read() as c:
        return set(c.scalars(sa.select(n.identity).where(n.identity.is_not(None), n.state != NodeState.ADDED, valid)))


def apply(store: Store, reports: Sequence[Report], allowance: Allowance | None = None) -> dict[str, Applied]:
    """Later reports of a node replace earlier ones. What was applied before has no effect again.

    Returns what the sender of updates may delete, by identity. It is without those whose updates must wait.
    """
    limit = allowance or Allowance()
    answers: dict[str, Applied] = {}
    with store.write() as c:
        held = incarnation.held(c) is not None
        nodes = _members(c, {one.identity for one in reports})
        _beats(c, nodes, [(one.identity, one.message) for one in reports if isinstance(one.message, Beat)])
        for one in reports:
            node = nodes.get(one.identity)
            if node is None or isinstance(one.message, Beat):
                continue
            if isinstance(one.message, Inventory):
                if held:
                    _inventory(c, node.name, one.message)
            elif not held:  # after a restore of the database, what nodes have done since is for an admin to review
                answer = _updates(c, one.identity, node.name, one.message, limit)
                if answer is not None:
                    answers[one.identity] = answer
    return answers


def _members(c: Connection, identities: Collection[str]) -> dict[str, Row[*tuple[Any, ...]]]:
    """The nodes with these identities, and the last beat of each. Logs what is no member."""
    n, l = t.nodes.c, t.links.c
    query = sa.select(n.identity, n.name, n.state, l.incarnation, l.sequence).outerjoin(
        t.links, l.identity == n.identity
    )
    rows = c.execute(query.where(n.identity.in_(identities), n.state != NodeState.ADDED))
    found = {row.identity: row for row in rows}
    for identity in sorted(set(identities) - found.keys()):
        log.warning("a report of %s is dropped: it is no member", identity)
    return found


def _beats(c: Connection, nodes: Mapping[str, Row[*tuple[Any, ...]]], beats: Sequence[tuple[str, Beat]]) -> None:
    """Write what the newest beat of each node says, and the newest facts, for all nodes in a few statements."""
    now = utcnow()
    last: dict[str, tuple[str, int]] = {}
    links: dict[str, dict[str, Any]] = {}
    changes: dict[str, dict[str, Any]] = {}
    for identity, beat in beats:
        node = nodes.get(identity)
        if node is None:
            continue
        incarnation_, sequence = last.get(identity, (node.incarnation, node.sequence))
        if incarnation_ == beat.incarnation and beat.sequence <= sequence:
            continue
        last[identity] = (beat.incarnation, beat.sequence)
        row = {"incarnation": beat.incarnation, "sequence": beat.sequence, "version": beat.version, "beat_at": now}
        links[identity] = {"identity": identity, **row}
        _change(c, node, beat, changes.setdefault(identity, {}), now)
    known = {identity for identity in links if nodes[identity].incarnation is not None}
    _write(c, t.links, [row for identity, row in links.items() if identity in known])
    if new := [row for identity, row in links.items() if identity not in known]:
        c.execute(t.links.insert(), new)
    _write(c, t.nodes, [{"identity": identity, **row} for identity, row in changes.items() if row])
    allocations.announce(c, {nodes[one].name: row["facts"] for one, row in changes.items() if "facts" in row})


def _change(c: Connection, node: Row[*tuple[Any, ...]], beat: Beat, changes: dict[str, Any], now: datetime) -> None:
    """Add what a beat changes in the row of its node."""
    if beat.address:
        changes["address"] = beat.address
    if beat.agent_age is not None:
        changes["agent_seen_at"] = now - timedelta(seconds=beat.agent_age)
        # a node without a mirror does not get its slivers
        if beat.mirror and node.state != NodeState.ACTIVE and "state" not in changes:
            changes["state"] = NodeState.ACTIVE
            operations.note(c, ADMIN, "node active", now, detail=node.name)
    if beat.facts is not None:
        changes["facts"] = dict(beat.facts)


def _write(c: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Update rows by their identity: those with the same columns in one statement."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(sorted(row))].append({f"b_{name}": value for name, value in row.items()})
    for names, values in groups.items():
        changed = {name: sa.bindparam(f"b_{name}", type_=table.c[name].type) for name in names if name != "identity"}
        c.execute(table.update().where(table.c.identity == sa.bindparam("b_identity")).values(changed), values)


def _inventory(c: Connection, node: str, found: Inventory) -> None:
    try:
        with c.begin_nested():
            observations.record(c, [inventories.compared(c, node, found)], node)
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:
        log.error("the inventory of node %s is dropped: %s", node, type(error).__name__)


def _updates(c: Connection, identity: str, node: str, found: Updates, limit: Allowance) -> Applied | None:
    l = t.links.c
    last = c.execute(sa.select(l.mirror, l.applied, l.applied_after).where(l.identity == identity)).first()
    if last is None:
        return None  # it is sent again after the first beat
    if found.mirror < last.mirror:
        return Applied(last.mirror, last.applied)
    applied, before = (last.applied, last.applied_after) if found.mirror == last.mirror else (0, 0)
    if not _agree(found.after, applied, before):
        log.warning("node %s and the centre do not agree about what was reported: it reports everything again", node)
        return Applied(found.mirror, applied, again=True)
    fresh = [(kind, content) for number, kind, content in found.updates if number > applied]
    try:
        with c.begin_nested():
            observations.record(c, limit.of(node, accepted(c, node, fresh)), node)
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:  # the reports of others go on
        log.error("%d updates of node %s are dropped: %s", len(fresh), node, type(error).__name__)
    applied = max(applied, found.updates[-1][0])
    row = {"mirror": found.mirror, "applied": applied, "applied_after": found.after}
    c.execute(t.links.update().where(l.identity == identity).values(row))
    return Applied(found.mirror, applied)


def _agree(after: int, applied: int, before: int) -> bool:
    """Whether a node sends what follows the updates that were applied.

    after: what it knows to be applied. before: the same when it sent those; it sends them again if no answer arrived.
    """
    return after in (applied, before)

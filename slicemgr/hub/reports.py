"""Apply what nodes report, in one transaction for all that arrived: only then is it acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr.hub.allowance import Allowance
from slicemgr.hub.updates import accepted
from slicemgr.model import NodeState
from slicemgr.policy.messages import Applied, Beat, Updates
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
    message: Beat | Updates


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
        for one in reports:
            node = _member(c, one.identity)
            if node is None:
                continue
            if isinstance(one.message, Beat):
                _beat(c, one.identity, node, one.message)
            elif not held:  # after a restore of the database, what nodes have done since is for an admin to review
                answer = _updates(c, one.identity, node.name, one.message, limit)
                if answer is not None:
                    answers[one.identity] = answer
    return answers


def _member(c: Connection, identity: str) -> Row[*tuple[Any, ...]] | None:
    n = t.nodes.c
    node = c.execute(sa.select(n.name, n.state).where(n.identity == identity)).first()
    if node is None or node.state == NodeState.ADDED:
        log.warning("a report of %s is dropped: it is no member", identity)
        return None
    return node


def _beat(c: Connection, identity: str, node: Row[*tuple[Any, ...]], beat: Beat) -> None:
    n, l, now = t.nodes.c, t.links.c, utcnow()
    last = c.execute(sa.select(l.incarnation, l.sequence).where(l.identity == identity)).first()
    if last is not None and last.incarnation == beat.incarnation and beat.sequence <= last.sequence:
        return
    row = {"incarnation": beat.incarnation, "sequence": beat.sequence, "version": beat.version, "beat_at": now}
    if last is None:
        c.execute(t.links.insert().values(**row, identity=identity))
    else:
        c.execute(t.links.update().where(l.identity == identity).values(row))
    changes: dict[str, object] = {"address": beat.address} if beat.address else {}
    if beat.agent_age is not None:
        changes["agent_seen_at"] = now - timedelta(seconds=beat.agent_age)
        if beat.mirror and node.state != NodeState.ACTIVE:  # a node without a mirror does not get its slivers
            changes["state"] = NodeState.ACTIVE
            operations.note(c, ADMIN, "node active", now, detail=node.name)
    if beat.facts is not None:
        changes["facts"] = dict(beat.facts)
        allocations.announce(c, node.name, beat.facts)
    if changes:
        c.execute(t.nodes.update().where(n.identity == identity).values(changes))


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

"""Apply what nodes report, in one transaction for all that arrived: only then is it acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import NodeState
from slicemgr.policy.messages import Beat
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """identity: of the queue in which the broker put it, never of its content."""

    identity: str
    beat: Beat


def members(store: Store) -> set[str]:
    """The identities of nodes that may connect: with a certificate that is valid and not revoked."""
    n, k = t.nodes.c, t.certificates.c
    valid = sa.exists().where(k.identity == n.identity, k.revoked_at.is_(None), k.expires_at > utcnow())
    with store.read() as c:
        return set(c.scalars(sa.select(n.identity).where(n.identity.is_not(None), n.state != NodeState.ADDED, valid)))


def apply(store: Store, reports: Sequence[Report]) -> None:
    """Later reports of a node replace earlier ones. What was applied before has no effect again."""
    with store.write() as c:
        for one in reports:
            _apply(c, one)


def _apply(c: Connection, report: Report) -> None:
    n, l, beat, now = t.nodes.c, t.links.c, report.beat, utcnow()
    node = c.execute(sa.select(n.name, n.state).where(n.identity == report.identity)).first()
    if node is None or node.state == NodeState.ADDED:
        log.warning("a report of %s is dropped: it is no member", report.identity)
        return
    last = c.execute(sa.select(l.incarnation, l.sequence).where(l.identity == report.identity)).first()
    if last is not None and last.incarnation == beat.incarnation and beat.sequence <= last.sequence:
        return
    row = {"incarnation": beat.incarnation, "sequence": beat.sequence, "version": beat.version, "beat_at": now}
    if last is None:
        c.execute(t.links.insert().values(**row, identity=report.identity))
    else:
        c.execute(t.links.update().where(l.identity == report.identity).values(row))
    changes: dict[str, object] = {"address": beat.address} if beat.address else {}
    if beat.agent_age is not None:
        changes |= {"agent_seen_at": now - timedelta(seconds=beat.agent_age), "state": NodeState.ACTIVE}
        if node.state != NodeState.ACTIVE:
            operations.note(c, ADMIN, "node active", now, detail=node.name)
    if beat.facts is not None:
        changes["facts"] = dict(beat.facts)
    if changes:
        c.execute(t.nodes.update().where(n.identity == report.identity).values(changes))

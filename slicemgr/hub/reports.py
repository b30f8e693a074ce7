"""Apply what nodes report: only then is it acknowledged. Beats wait for no other transaction; see hub.beats."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.hub import beats, inventories
from slicemgr.hub.allowance import Allowance
from slicemgr.hub.beats import Beats, Members
from slicemgr.hub.updates import accepted
from slicemgr.model import NodeState
from slicemgr.policy.messages import Applied, Beat, Inventory, Updates
from slicemgr.store import Store, incarnation, observations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_L = t.links.c
_LAST = sa.select(_L.mirror, _L.applied, _L.applied_after).where(_L.identity == sa.bindparam("identity"))
_SET_LAST = t.links.update().where(_L.identity == sa.bindparam("b_identity"))
_LONGEST = 0.02  # seconds after which the rest is for the next transaction, so that others can write in between


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

    Returns what the sender of updates may delete, by identity. It is without those whose updates must wait. Raises
    StoreError; then some may have been applied.
    """
    limit = allowance or Allowance()
    answers: dict[str, Applied] = {}
    sent = [(one.identity, one.message) for one in reports if isinstance(one.message, Beat)]
    others = deque(one for one in reports if not isinstance(one.message, Beat))
    senders = _senders(others)
    left = [*beats.write(store, _without(sent, senders)), *(one for one in sent if one[0] in senders)]
    while left or others:
        with store.write() as c:
            end = time.monotonic() + _LONGEST
            held = incarnation.held(c) is not None
            nodes = beats.members(c, {identity for identity, _ in left} | _senders(others))
            others = deque(one for one in others if one.identity in nodes)
            new = {identity for identity, node in nodes.items() if node.incarnation is None}
            left = _write_beats(c, nodes, left, _senders(others) - new)
            while others:
                one = others.popleft()
                answer = _apply(c, one, nodes[one.identity].name, limit, held=held)
                if answer is not None:
                    answers[one.identity] = answer
                if time.monotonic() > end:
                    break
            left = _write_beats(c, nodes, left, _senders(others))
    return answers


def _senders(reports: Iterable[Report]) -> set[str]:
    return {one.identity for one in reports}


def _without(sent: Beats, senders: Collection[str]) -> list[tuple[str, Beat]]:
    return [one for one in sent if one[0] not in senders]


def _write_beats(c: Connection, nodes: Members, left: Beats, waiting: Collection[str]) -> list[tuple[str, Beat]]:
    """Write beats, except for those of nodes with reports that wait: who sees a beat sees what came before it.

    Returns these.
    """
    beats.write_others(c, nodes, _without(left, waiting))
    return [one for one in left if one[0] in waiting]


def _apply(c: Connection, report: Report, node: str, limit: Allowance, *, held: bool) -> Applied | None:
    """held: after a restore of the database, what nodes have done since is for an admin to review."""
    match report.message:
        case Inventory() if held:
            _inventory(c, node, report.message)
        case Updates() if not held:
            return _updates(c, report.identity, node, report.message, limit)
    return None


def _inventory(c: Connection, node: str, found: Inventory) -> None:
    try:
        with c.begin_nested():
            observations.record(c, [inventories.compared(c, node, found)], node)
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError) as error:
        log.error("the inventory of node %s is dropped: %s", node, type(error).__name__)


def _updates(c: Connection, identity: str, node: str, found: Updates, limit: Allowance) -> Applied | None:
    last = c.execute(_LAST, {"identity": identity}).first()
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
    c.execute(
        _SET_LAST, {"b_identity": identity, "mirror": found.mirror, "applied": applied, "applied_after": found.after}
    )
    return Applied(found.mirror, applied)


def _agree(after: int, applied: int, before: int) -> bool:
    """Whether a node sends what follows the updates that were applied.

    after: what it knows to be applied. before: the same when it sent those; it sends them again if no answer arrived.
    """
    return after in (applied, before)

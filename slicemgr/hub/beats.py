"""Write what beats say. They come all the time, so they wait for no other transaction, and none waits for them.

The hub alone writes `links` and these columns of `nodes` and `allocations`, and no other transaction decides anything
on them that two beats could contradict. So the beats of known nodes need no lock but those of their own rows.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import NodeState
from slicemgr.policy.messages import Beat
from slicemgr.service.nodes import operations
from slicemgr.store import Store, allocations
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_N, _L, _A = t.nodes.c, t.links.c, t.allocations.c
_TOTALS = (_A.memory_total, _A.disk_total, _A.ports_total)

Members = Mapping[str, Row[*tuple[Any, ...]]]  # by identity
Beats = Sequence[tuple[str, Beat]]  # with the identity of the sender


def write(store: Store, beats: Beats) -> list[tuple[str, Beat]]:
    """Write the beats of active nodes. Returns those that a transaction of `store.write()` has to write: of nodes that
    become active or have no row of their link yet, and of nodes whose rows another transaction changes at this moment.
    """
    if not beats:
        return []
    with store.write_beside() as c:
        nodes = _free(c, {identity for identity, _ in beats})
        _write(c, nodes, [one for one in beats if one[0] in nodes])
    return [one for one in beats if one[0] not in nodes]


def write_others(c: Connection, nodes: Members, beats: Beats) -> None:
    """Write the beats that `write` has returned. nodes: from `members`."""
    _write(c, nodes, [one for one in beats if one[0] in nodes])


def members(c: Connection, identities: Collection[str]) -> Members:
    """The nodes with these identities, and the last beat of each. Logs what is no member."""
    found = {row.identity: row for row in c.execute(_members(), {"identities": list(identities)})}
    for identity in sorted(set(identities) - found.keys()):
        log.warning("a report of %s is dropped: it is no member", identity)
    return found


def _free(c: Connection, identities: Collection[str]) -> Members:
    """The active nodes of which no other transaction changes a row. It locks their rows without waiting for any: who
    waits for one of these rows may hold others, in another order.
    """
    return {row.identity: row for row in c.execute(_unlocked(), {"identities": list(identities)})}


@cache
def _members() -> sa.Select[Any]:
    """Kept like all statements that are executed for each beat: to make one takes longer than to execute it."""
    joined = _query().outerjoin(t.links, _L.identity == _N.identity).outerjoin(t.allocations, _A.node == _N.name)
    return joined.where(_N.state != NodeState.ADDED)


@cache
def _unlocked() -> sa.Select[Any]:
    joined = _query().join(t.links, _L.identity == _N.identity).join(t.allocations, _A.node == _N.name)
    return joined.where(_N.state == NodeState.ACTIVE).with_for_update(key_share=True, skip_locked=True)


def _query() -> sa.Select[Any]:
    columns = (_N.identity, _N.name, _N.state, _L.incarnation, _L.sequence, _A.node.label("counted"), *_TOTALS)
    return sa.select(*columns).where(_N.identity.in_(sa.bindparam("identities", expanding=True)))


def _write(c: Connection, nodes: Members, beats: Beats) -> None:
    """Write what the newest beat of each node says, and the newest facts, for all nodes in a few statements."""
    now = utcnow()
    last: dict[str, tuple[str, int]] = {}
    links: dict[str, dict[str, Any]] = {}
    changes: dict[str, dict[str, Any]] = {}
    for identity, beat in beats:
        node = nodes[identity]
        incarnation, sequence = last.get(identity, (node.incarnation, node.sequence))
        if incarnation == beat.incarnation and beat.sequence <= sequence:
            continue
        last[identity] = (beat.incarnation, beat.sequence)
        row = {"incarnation": beat.incarnation, "sequence": beat.sequence, "version": beat.version, "beat_at": now}
        links[identity] = {"identity": identity, **row}
        _change(c, node, beat, changes.setdefault(identity, {}), now)
    known = {identity for identity in links if nodes[identity].incarnation is not None}
    _update(c, t.links, [row for identity, row in links.items() if identity in known])
    if new := [row for identity, row in links.items() if identity not in known]:
        c.execute(t.links.insert(), new)
    _update(c, t.nodes, [{"identity": identity, **row} for identity, row in changes.items() if row])
    facts = {identity: row["facts"] for identity, row in changes.items() if "facts" in row}
    new_totals = {identity: one for identity, one in facts.items() if not _is_announced(nodes[identity], one)}
    allocations.announce(c, {nodes[identity].name: one for identity, one in new_totals.items()})


def _is_announced(node: Row[*tuple[Any, ...]], facts: Mapping[str, Any]) -> bool:
    """Whether it has a row of its allocations, with these facts."""
    return node.counted is not None and allocations.announced(facts) == {
        column.name: getattr(node, column.name) for column in _TOTALS
    }


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


def _update(c: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Update rows by their identity: those with the same columns in one statement."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(sorted(row))].append({f"b_{name}": value for name, value in row.items()})
    for names, values in groups.items():
        c.execute(_set_columns(table, names), values)


@cache
def _set_columns(table: sa.Table, names: tuple[str, ...]) -> sa.Update:
    changed = {name: sa.bindparam(f"b_{name}", type_=table.c[name].type) for name in names if name != "identity"}
    return table.update().where(table.c.identity == sa.bindparam("b_identity")).values(changed)

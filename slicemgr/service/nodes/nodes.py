"""Nodes with what they announce and what is committed on them, and operations on a node."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import Limits, NodeImageState, NodeState
from slicemgr.policy import access, allocate, node_network, placement
from slicemgr.policy.access import Principal
from slicemgr.policy.placement import Candidate
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_N, _A = t.nodes.c, t.allocations.c
_LONG_AGO = sa.literal(datetime.min.replace(tzinfo=UTC), _N.agent_seen_at.type)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that has slivers or can get some. address: of its ports."""

    candidate: Candidate
    address: str
    cursors: allocate.Cursors


def every(c: Connection, config: Config, image: str = "") -> dict[str, NodeRow]:
    """All nodes with an agent, by name. image: sha256 of the image whose presence matters.

    Refused(UNAVAILABLE) if there is none (yet).
    """
    found = _read(c, config, _query(image).order_by(_N.name))
    if not found:
        raise _no_agent()
    return found


def preferred(
    c: Connection, config: Config, wanted: Limits, ports: int, image: str, names: Collection[str], most: int
) -> dict[str, NodeRow]:
    """The nodes that seem best for slivers with these limits, the best first, at most `most` of them.

    names: that may be used; empty: all. These nodes announced their pools, have reported lately, and have room; whether
    they can run the slivers is for the caller to check. The order is that of policy.placement for slivers that spread.
    """
    seen = utcnow() - placement.SILENT
    kinds = (
        (_A.ports, ports, _A.ports_total, 1.0),
        (_A.memory, wanted.memory, _A.memory_total, config.limits.memory_overcommit),
        (_A.disk, wanted.disk, _A.disk_total, config.limits.disk_overcommit),
    )
    largest: Any = sa.func.greatest if c.dialect.name == "postgresql" else sa.func.max
    # PostgreSQL takes each condition on a share for rare, and its statistics for older than the last report of any
    # node. It would expect one node, and find the allocations of each with an index: four times the work.
    room = [largest(*(_share(given + more, total, overcommit) for given, more, total, overcommit in kinds)) <= 1.0]
    if names:
        room.append(_N.name.in_(names))
    committed = largest(*(_share(given, total, overcommit) for given, _, total, overcommit in kinds))
    there = sa.case((t.image_nodes.c.image.is_not(None), placement.IMAGE_THERE), else_=0.0)
    alive = (_N.silent_since.is_(None), sa.func.coalesce(_N.agent_seen_at, _LONG_AGO) >= seen)
    query = _query(image).where(_A.ports_total > 0, ~_N.drained, *alive, *room)
    return _read(c, config, query.order_by(committed - there, _N.name).limit(most))


def _share(amount: Any, total: Any, overcommit: float) -> Any:
    """The committed part of a resource, as policy.placement.share computes it; 0 where the total is not known."""
    whole = sa.cast(total, sa.Double) * overcommit
    return sa.func.coalesce(sa.cast(amount, sa.Double) / sa.func.nullif(whole, 0.0), 0.0)


def find(c: Connection, config: Config, name: str) -> NodeRow:
    """The node with this name. Refused(UNAVAILABLE)."""
    found = _read(c, config, _query("").where(_N.name == name))
    if not found:
        raise Refused(Code.UNAVAILABLE, f"node {name} has no agent", hint="`slicectl node list`", field="node")
    return found[name]


def _query(image: str) -> sa.Select[Any]:
    """Nodes with an agent, and what their slivers have been allocated."""
    x = t.image_nodes.c
    there = sa.and_(x.node == _N.name, x.image == image, x.state == NodeImageState.READY)
    amounts = (sa.func.coalesce(_A[name], 0).label(f"given_{name}") for name in ("slivers", "memory", "disk", "ports"))
    query = sa.select(t.nodes, *amounts, x.image.is_not(None).label("has_image"))
    query = query.outerjoin(t.allocations, _A.node == _N.name).outerjoin(t.image_nodes, there)
    return query.where(_N.state == NodeState.ACTIVE)


def _read(c: Connection, config: Config, query: sa.Select[Any]) -> dict[str, NodeRow]:
    now = utcnow()
    return {row.name: _node(row, config, now) for row in c.execute(query)}


def _node(row: Row[*tuple[Any, ...]], config: Config, now: datetime) -> NodeRow:
    """A host that joined has pools of its own; they and its other facts are not trusted."""
    network, trouble = config.network, ""
    if row.identity is not None:
        try:
            network = node_network.announced(row.facts, config.network)
        except Refused as error:
            trouble = error.message
    if row.silent_since is not None:
        trouble = f"it has not reported since {row.silent_since:%Y-%m-%dT%H:%M:%SZ}"
    candidate = Candidate(
        name=row.name,
        facts=row.facts,
        network=network,
        trouble=trouble,
        site=row.site,
        drained=row.drained,
        silent=None if row.agent_seen_at is None else now - row.agent_seen_at,
        slivers=row.given_slivers,
        memory=row.given_memory,
        disk=row.given_disk,
        ports=row.given_ports,
        image=row.has_image,
    )
    return NodeRow(candidate, row.address, allocate.Cursors(row.next_address, row.next_port, row.next_uid))


def _no_agent() -> Refused:
    return Refused(Code.UNAVAILABLE, "no node has a running agent", hint="start `slicemgr agent` on the node")


def request(store: Store, config: Config, name: str, kind: str, by: Principal, params: Mapping[str, Any]) -> str:
    """Start an operation on a node, such as `doctor` or `gc`; the operation's id."""
    access.run_on_node(by, kind)
    with store.write() as c:
        found = c.scalar(sa.select(_N.state).where(_N.name == name))
        if found is None:
            raise Refused(Code.NOT_FOUND, f"there is no node {name!r}", field="node")
        if found != NodeState.ACTIVE:
            hint = "`slicectl node list` shows what its host must do first"
            raise Refused(Code.CONFLICT, f"no agent of node {name} has reported yet", hint=hint)
        now = utcnow()
        operation = operations.add(c, kind, operations.Subject(name), by.user, now, params)
        operations.note(c, by.user, kind, now, detail=name, address=by.address)
    wake(config.wake_socket)
    return operation

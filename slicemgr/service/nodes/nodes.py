"""Nodes with what they announce and what is committed on them, and operations on a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import NodeState
from slicemgr.policy import access, allocate, node_network
from slicemgr.policy.access import Principal
from slicemgr.policy.placement import Candidate
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_N = t.nodes.c


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
    s = t.slivers.c
    sums = (sa.func.count(), *(sa.func.sum(one) for one in (s.memory, s.disk, s.port_count)))
    used = {row[0]: tuple(map(int, row[1:])) for row in c.execute(sa.select(s.node, *sums).group_by(s.node))}
    with_image = sa.select(s.node).distinct().join(t.slices, t.slices.c.id == s.slice).where(t.slices.c.image == image)
    there = set(c.scalars(with_image)) if image else set()
    rows = c.execute(sa.select(t.nodes).where(_N.state == NodeState.ACTIVE).order_by(_N.name)).all()
    if not rows:
        raise _no_agent()
    now = utcnow()
    return {row.name: _node(row, used.get(row.name, (0, 0, 0, 0)), config, row.name in there, now) for row in rows}


def find(c: Connection, config: Config, name: str) -> NodeRow:
    """The node with this name. Refused(UNAVAILABLE)."""
    found = every(c, config).get(name)
    if found is None:
        raise Refused(Code.UNAVAILABLE, f"node {name} has no agent", hint="`slicectl node list`", field="node")
    return found


def _node(row: Row[*tuple[Any, ...]], used: tuple[int, ...], config: Config, image: bool, now: datetime) -> NodeRow:
    """A host that joined has pools of its own; they and its other facts are not trusted."""
    slivers, memory, disk, ports = used
    network, trouble = config.network, ""
    if row.identity is not None:
        try:
            network = node_network.announced(row.facts, config.network)
        except Refused as error:
            trouble = error.message
    candidate = Candidate(
        name=row.name,
        facts=row.facts,
        network=network,
        trouble=trouble,
        site=row.site,
        drained=row.drained,
        silent=None if row.agent_seen_at is None else now - row.agent_seen_at,
        slivers=slivers,
        memory=memory,
        disk=disk,
        ports=ports,
        image=image,
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

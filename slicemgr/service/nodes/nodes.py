"""Nodes with what they announce and what is committed on them, and operations on a node."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import NodeImageState, NodeState, PortBlock
from slicemgr.policy import access, allocate, node_network
from slicemgr.policy.access import Principal
from slicemgr.policy.image_needs import ALL, Needs
from slicemgr.policy.placement import Candidate
from slicemgr.service.nodes import operations
from slicemgr.store import Store, allocations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_N, _A = t.nodes.c, t.allocations.c


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that has slivers or can get some. address: of its ports."""

    candidate: Candidate
    address: str
    cursors: allocate.Cursors


def every(c: Connection, config: Config, image: str, needed: Needs) -> dict[str, NodeRow]:
    """All nodes with an agent, by name. image: sha256 of the image of which the presence of these files matters.

    Refused(UNAVAILABLE) if there is none (yet).
    """
    found = _read(c, config, query(image, needed).order_by(_N.name))
    if not found:
        raise _no_agent()
    return found


def named(c: Connection, config: Config, names: Collection[str], image: str, needed: Needs) -> dict[str, NodeRow]:
    """These nodes, as far as they have an agent."""
    return _read(c, config, _named(needed), {"image": image, "names": list(names)})


@cache
def _named(needed: Needs) -> sa.Select[Any]:
    """Kept, because making it takes longer than its execution."""
    return query(sa.bindparam("image"), needed).where(_N.name.in_(sa.bindparam("names", expanding=True)))


def exist(c: Connection, names: Collection[str]) -> bool:
    """Whether all of these nodes have an agent."""
    active = sa.select(sa.func.count()).where(_N.state == NodeState.ACTIVE, _N.name.in_(names))
    return c.scalar(active) == len(set(names))


def find(c: Connection, config: Config, name: str) -> NodeRow:
    """The node with this name. Refused(UNAVAILABLE)."""
    found = _read(c, config, query("", ALL).where(_N.name == name))
    if not found:
        raise Refused(Code.UNAVAILABLE, f"node {name} has no agent", hint="`slicectl node list`", field="node")
    return found[name]


def given(c: Connection, node: str) -> list[allocate.Given]:
    """What the slivers of a node have been allocated."""
    s = t.slivers.c
    query = sa.select(s.address, s.port_first, s.port_count, s.uid_first, s.memory, s.disk, s.memory_guarantee)
    query = query.where(s.node == node)
    return [
        allocate.Given(address, PortBlock(first, count), uid, *sizes)
        for address, first, count, uid, *sizes in c.execute(query)
    ]


def move_cursors(c: Connection, cursors: Mapping[str, allocate.Cursors]) -> None:
    """Note where the next search on each of these nodes starts."""
    rows = [
        {"b_name": node, "next_address": one.address, "next_port": one.port, "next_uid": one.uid}
        for node, one in cursors.items()
    ]
    if rows:
        c.execute(t.nodes.update().where(_N.name == sa.bindparam("b_name")), rows)


def has_files(image: str | sa.BindParameter[str], needed: Needs) -> sa.ColumnElement[bool]:
    """The condition under which a row of `image_nodes` is of a node that has these files of an image."""
    x = t.image_nodes.c
    files = ([x.base] if needed.base else []) + ([x.disk] if needed.disk else [])
    return sa.and_(x.node == _N.name, x.image == image, *(one == NodeImageState.READY for one in files))


def query(image: str | sa.BindParameter[str], needed: Needs) -> sa.Select[Any]:
    """Nodes with an agent, what their slivers have been allocated, and whether they have these files of an image.

    `of_row` reads its rows, to which a caller may add columns with other names.
    """
    amounts = (sa.func.coalesce(_A[name], 0).label(f"given_{name}") for name in allocations.COUNTED)
    found = sa.select(t.nodes, *amounts, t.image_nodes.c.image.is_not(None).label("has_image"))
    found = found.outerjoin(t.allocations, _A.node == _N.name).outerjoin(t.image_nodes, has_files(image, needed))
    return found.where(_N.state == NodeState.ACTIVE)


def _read(
    c: Connection, config: Config, rows: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> dict[str, NodeRow]:
    """given: the parameters of the statement."""
    now = utcnow()
    return {row.name: of_row(row, config, now) for row in c.execute(rows, given)}


def of_row(row: Row[*tuple[Any, ...]], config: Config, now: datetime) -> NodeRow:
    """The node in a row of `query`.

    A host that joined has pools of its own; they and its other facts are not trusted.
    """
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
        memory_guarantee=row.given_memory_guarantee,
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

"""Nodes as the JSON of the REST API: capacity and what is allocated."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.policy import liveness
from slicemgr.service.slices import spares
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import allocations
from slicemgr.store import tables as t


def nodes(c: Connection, network: NetworkConfig, name: str | None = None, page: Page | None = None) -> list[Json]:
    """All nodes with capacity and allocation, or the one called `name`. Refused(NOT_FOUND)."""
    n, a, l = t.nodes.c, t.allocations.c, t.links.c
    amounts = (sa.func.coalesce(a[one], 0).label(f"given_{one}") for one in allocations.COUNTED)
    query = sa.select(t.nodes, l.version, l.beat_at, l.resync_at, *amounts).outerjoin(t.links, l.identity == n.identity)
    held = sa.select(t.slivers.c.node, sa.func.count().label("count")).where(spares.is_spare())
    ready = held.group_by(t.slivers.c.node).subquery("held")
    query = query.outerjoin(t.allocations, a.node == n.name).outerjoin(ready, ready.c.node == n.name)
    query = query.add_columns(sa.func.coalesce(ready.c["count"], 0).label("spares"))
    if name is not None:
        query = query.where(n.name == name)
    rows = paging.rows(c, query, page, By(n.name))
    if name is not None and not rows:
        raise Refused(Code.NOT_FOUND, f"there is no node {name[:80]!r}", hint="list them with `slicectl node list`")
    return [_node(row, network) for row in rows]


def several(c: Connection) -> bool:
    """Whether the testbed has more than one node."""
    return len(c.execute(sa.select(t.nodes.c.name).limit(2)).all()) > 1


def slices_on(c: Connection, name: str, most: int = 50) -> list[Json]:
    """The slices with slivers on a node, by project and name, at most `most`: each with the number of slivers."""
    s, l = t.slivers.c, t.slices.c
    query = sa.select(l.project, l.name, sa.func.count().label("slivers")).join(t.slivers, s.slice == l.id)
    query = query.where(s.node == name).group_by(l.project, l.name).order_by(l.project, l.name).limit(most)
    return [dict(row._mapping) for row in c.execute(query)]


def _node(row: Row[*tuple[Any, ...]], network: NetworkConfig) -> Json:
    facts = dict(row.facts)
    return {
        "name": row.name,
        "address": row.address,
        "site": row.site,
        "state": row.state,
        "drained": row.drained,
        "liveness": liveness.noted(row.silent_since, row.lost),
        "silent_since": when(row.silent_since),
        "version": row.version,
        "beat_at": when(row.beat_at),
        "resync_at": when(row.resync_at),
        "agent_seen_at": when(row.agent_seen_at),
        "facts": facts,
        "capacity": {
            "memory": facts.get("memory", 0),
            "disk": facts.get("disk_total", 0),
            "cpus": facts.get("cpus", 0),
            "ports": network.ports_last - network.ports_first + 1,
        },
        "used": {
            "slivers": row.given_slivers,
            "memory_limits": row.given_memory,
            "memory_guarantees": row.given_memory_guarantee,
            "disk_limits": row.given_disk,
            "ports": row.given_ports,
            "addresses": row.given_slivers,
            "spares": row.spares,
        },
    }

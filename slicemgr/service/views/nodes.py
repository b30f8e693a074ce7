"""Nodes as the JSON of the REST API: capacity and what is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t


def nodes(c: Connection, network: NetworkConfig, name: str | None = None, page: Page | None = None) -> list[Json]:
    """All nodes with capacity and allocation, or the one called `name`. Refused(NOT_FOUND)."""
    n, s, l = t.nodes.c, t.slivers.c, t.links.c
    query = sa.select(t.nodes, l.version, l.beat_at).outerjoin(t.links, l.identity == n.identity)
    if name is not None:
        query = query.where(n.name == name)
    rows = paging.rows(c, query, page, By(n.name))
    if name is not None and not rows:
        raise Refused(Code.NOT_FOUND, f"there is no node {name[:80]!r}", hint="list them with `slicectl node list`")
    sums = sa.select(s.node, sa.func.count(), *(sa.func.sum(one) for one in (s.memory, s.disk, s.port_count)))
    used = {row[0]: row[1:] for row in c.execute(sums.group_by(s.node))}
    return [_node(row, used.get(row.name, (0, 0, 0, 0)), network) for row in rows]


def _node(row: Row[*tuple[Any, ...]], used: Sequence[Any], network: NetworkConfig) -> Json:
    slivers, memory, disk, ports = (int(one or 0) for one in used)
    facts = dict(row.facts)
    return {
        "name": row.name,
        "address": row.address,
        "site": row.site,
        "state": row.state,
        "drained": row.drained,
        "version": row.version,
        "beat_at": when(row.beat_at),
        "agent_seen_at": when(row.agent_seen_at),
        "facts": facts,
        "capacity": {
            "memory": facts.get("memory", 0),
            "disk": facts.get("disk_total", 0),
            "cpus": facts.get("cpus", 0),
            "ports": network.ports_last - network.ports_first + 1,
        },
        "used": {
            "slivers": slivers,
            "memory_limits": memory,
            "disk_limits": disk,
            "ports": ports,
            "addresses": slivers,
        },
    }

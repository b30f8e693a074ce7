"""What the slivers of a node have been promised of its memory."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import SliverType
from slicemgr.store import tables as t


class Promise(NamedTuple):
    """Of one sliver. guarantee, ceiling: bytes. number: of the sliver in its slice. project, slice: "" of a spare.

    soft: bytes down to which the kernel reclaims when memory is short (deprecated); None: none.
    grows: whether a virtual machine may get more memory than it started with.
    """

    id: str
    type: str
    guarantee: int
    weight: int
    ceiling: int
    number: int = 0
    slice: str = ""
    project: str = ""
    soft: int | None = None
    grows: bool = False


def of_node(c: Connection, node: str) -> list[Promise]:
    """The promises of all slivers of a node, spares included."""
    s, l, p = t.slivers.c, t.slices.c, t.spares.c
    kind = sa.func.coalesce(l.type, p.type, SliverType.LXC)
    names = (sa.func.coalesce(l.name, ""), sa.func.coalesce(l.project, ""))
    slice = (s.idx, *names, s.memory_soft, s.memory_max.is_not(None))
    query = sa.select(s.id, kind, s.memory_guarantee, s.memory_weight, s.memory, *slice).where(s.node == node)
    query = query.outerjoin(t.slices, l.id == s.slice).outerjoin(t.spares, p.sliver == s.id)
    return [Promise(*row) for row in c.execute(query)]


def any_of_node(c: Connection, node: str) -> bool:
    """Whether anything is guaranteed to a sliver of a node."""
    s = t.slivers.c
    return bool(c.scalar(sa.select(sa.exists().where(s.node == node, s.memory_guarantee > 0))))

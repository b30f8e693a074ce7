"""The few nodes that are best for new slivers by their counters, and what bounds all others.

The order of the database is that of policy.placement, by numbers which are never worse for a node than those that
policy.placement computes from its facts: the true ones, if the node announced its pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.model import NodeState, SliceSpec, Spread
from slicemgr.policy import allocate, placement
from slicemgr.policy.image_needs import Needs
from slicemgr.policy.placement import Beyond
from slicemgr.service.nodes import nodes
from slicemgr.service.nodes.nodes import NodeRow
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_N, _A = t.nodes.c, t.allocations.c
_LONG_AGO = sa.literal(datetime.min.replace(tzinfo=UTC), _N.agent_seen_at.type)
_Number = sa.ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """image: sha256. needed: of its files. apart: nodes that are not used."""

    spec: SliceSpec
    image: str
    needed: Needs
    apart: frozenset[str]


@dataclass(frozen=True, slots=True)
class Few:
    """beyond: the nodes that were not read; (): there is no other node with room."""

    rows: dict[str, NodeRow]
    beyond: tuple[Beyond, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the statement depends on, apart from its parameters. by_site: first the best of each site, then the next."""

    postgresql: bool
    needed: Needs
    pack: bool
    by_site: bool
    nodes: bool
    site: bool


def select(c: Connection, config: Config, wanted: Wanted, most: int) -> Few:
    """At most `most` of the nodes that have reported lately and have room, in the order in which they would be chosen.

    Whether they can run the slivers is for the caller to check.
    """
    spec, where = wanted.spec, wanted.spec.where
    by_site = where.spread is Spread.SITE and spec.count > 1
    on = c.dialect.name == "postgresql", wanted.needed
    kind = _Kind(*on, where.spread is Spread.PACK, by_site, bool(where.nodes), bool(where.site))
    found = c.execute(_statement(kind), _parameters(config, wanted, most)).all()
    rows = nodes.named(c, config, [one.name for one in found], wanted.image, wanted.needed)
    if len(found) < most:
        return Few(rows, ())
    return Few(rows, _sites(found) if by_site else (_beyond(_group(spec), found[-1]),))


def _group(spec: SliceSpec) -> str | None:
    return None if spec.where.spread is Spread.SITE else ""


def _sites(found: Sequence[Row[*tuple[Any, ...]]]) -> tuple[Beyond, ...]:
    """Each site has its nodes in `found` in their order: the last one bounds those that are not."""
    last = {one.site: one for one in found}
    beyond = [_beyond(site, one) for site, one in last.items() if one.number < one.of_site]
    return (*beyond, _beyond(None, found[-1])) if found[-1].number == 1 else tuple(beyond)


def _beyond(group: str | None, last: Row[*tuple[Any, ...]]) -> Beyond:
    return Beyond(group, int(last.room), last.committed, last.name)


def _parameters(config: Config, wanted: Wanted, most: int) -> dict[str, Any]:
    spec, network = wanted.spec, config.network
    return {
        "count": spec.count,
        "ports": spec.ports,
        "memory": max(1, spec.limits.memory),
        "disk": max(1, spec.limits.disk),
        "own_ports": network.ports_last - network.ports_first + 1,
        "memory_guarantee": spec.limits.memory_guarantee,
        "memory_reserve": config.limits.memory_reserve.bytes,
        "memory_overcommit": config.limits.memory_overcommit,
        "disk_overcommit": config.limits.disk_overcommit,
        "image": wanted.image,
        "seen": utcnow() - placement.SILENT,
        "apart": list(wanted.apart),
        "nodes": list(spec.where.nodes),
        "site": spec.where.site,
        "most": most,
    }


def _int(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger)


@cache
def _statement(kind: _Kind) -> sa.Select[Any]:
    """The names, the best first. Kept, because making it takes longer than its execution for some hundred nodes."""
    room, committed = _room(kind).label("room"), _committed(kind).label("committed")
    name = sa.collate(_N.name, "C") if kind.postgresql else _N.name
    there = nodes.has_files(sa.bindparam("image", type_=sa.Text), kind.needed)
    query = sa.select(_N.name, room, committed).outerjoin(t.allocations, _A.node == _N.name)
    query = query.outerjoin(t.image_nodes, there).where(_N.state == NodeState.ACTIVE, ~_N.drained)
    # PostgreSQL's statistics are older than the last report of any node: without the function it would expect that none
    # has reported since, and find the allocations of each with an index, which is four times the work.
    reported = sa.func.coalesce(_N.agent_seen_at, _LONG_AGO) >= sa.bindparam("seen")
    query = query.where(_N.silent_since.is_(None), reported, room.element >= 1)
    query = query.where(_N.name.not_in(sa.bindparam("apart", expanding=True)))
    if kind.nodes:
        query = query.where(_N.name.in_(sa.bindparam("nodes", expanding=True)))
    if kind.site:
        query = query.where(_N.site == sa.bindparam("site"))
    if kind.by_site:
        number = sa.func.row_number().over(partition_by=_N.site, order_by=(committed.element, name)).label("number")
        of_site = sa.func.count().over(partition_by=_N.site).label("of_site")
        query = query.add_columns(_N.site, number, of_site).order_by(number)
    elif kind.pack:
        query = query.order_by(room.desc())
    return query.order_by(committed, name).limit(_int("most"))


def _pools() -> tuple[tuple[_Number, _Number, _Number, _Number], ...]:
    """Of each resource what was given, what a sliver gets (0: nothing), what the node has, and how far that may be
    exceeded.

    A node whose agent uses the database itself has the ports of the settings.
    """
    ports_total = sa.case((_N.identity.is_(None), _int("own_ports")), else_=_A.ports_total)
    memory, disk = (sa.bindparam(f"{name}_overcommit", type_=sa.Double) for name in ("memory", "disk"))
    reserve = _int("memory_reserve")
    guaranteed = sa.case(
        (_A.memory_total > reserve, _A.memory_total - reserve),
        (_A.memory_total <= reserve, sa.literal(0, sa.BigInteger)),
    )
    return (
        (_A.ports, _int("ports"), ports_total, sa.literal(1.0, sa.Double)),
        (_A.memory, _int("memory"), _A.memory_total, memory),
        (_A.memory_guarantee, _int("memory_guarantee"), guaranteed, sa.literal(1.0, sa.Double)),
        (_A.disk, _int("disk"), _A.disk_total, disk),
    )


def _room(kind: _Kind) -> _Number:
    """The number of slivers for which a node has room, at most all."""
    count = sa.cast(_int("count"), sa.Double)
    counts: list[_Number] = [count, sa.cast(allocate.UID_RANGES - sa.func.coalesce(_A.slivers, 0), sa.Double)]
    for given, each, total, overcommit in _pools():
        left = sa.cast(total, sa.Double) * overcommit - sa.cast(sa.func.coalesce(given, 0), sa.Double)
        counts.append(sa.func.coalesce(left / sa.func.nullif(sa.cast(each, sa.Double), 0.0), count))
    if kind.postgresql:
        return sa.func.floor(sa.func.least(*counts))
    return sa.cast(sa.func.min(*counts), sa.BigInteger)


def _committed(kind: _Kind) -> _Number:
    """As policy.placement.share computes it, less what an image that is there outweighs."""
    shares = []
    for given, _, total, overcommit in _pools():
        whole = sa.func.nullif(sa.cast(total, sa.Double) * overcommit, 0.0)
        shares.append(sa.func.coalesce(sa.cast(given, sa.Double) / whole, 0.0))
    largest = (sa.func.greatest if kind.postgresql else sa.func.max)(*shares)
    there = sa.case((t.image_nodes.c.image.is_not(None), placement.IMAGE_THERE), else_=0.0)
    return sa.type_coerce(largest, sa.Double) - there

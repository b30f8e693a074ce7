"""Spares: slivers that run and belong to no slice yet. A create takes one instead of making one.

A node keeps those that `spares.keep` names. They are made by the same plan as all others, and differ in that they have
no slice: no quota, no list and no account knows them. A spare is taken in the transaction of the create, so that it is
never given twice, and never returns. Whatever does not fit a spare is an ordinary create.
"""

from __future__ import annotations

import functools
import operator
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import (
    LIVE_LIMITS,
    SPARE,
    Boot,
    Desired,
    ImageState,
    Limits,
    NodeState,
    Phase,
    SliceSpec,
    SliverType,
)
from slicemgr.policy import allocate, placement
from slicemgr.policy.image_needs import ALL, needs
from slicemgr.service.nodes import nodes, operations
from slicemgr.service.slices import image_choice, request_defaults, sliver_rows, specs
from slicemgr.store import Store, incarnation, operation_parts
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

USER = "agent"  # of the operations
_AT_ONCE = 4  # spares of one node that are made at the same time
_MOST_NODES = 20  # whose spares one transaction makes or discards, each for some milliseconds of the lock
_MOST_FOUND = 32  # spares that are examined for a request; beyond these it is an ordinary create
_ROOM = 8  # port blocks that must be free beside those of the spares
_RETRY = timedelta(minutes=10)  # after which a spare that failed is made again
_LEAST_MEMORY = 0.1  # of the node's memory; with less available there are no spares
_NUMBERS: dict[str, Callable[[str], Any]] = {"ports": int, "pids": int, "cpu": float}  # in the JSON of a request
_RATES = ("net_in", "net_out")
_S, _P, _N = t.slivers.c, t.spares.c, t.nodes.c
# Made once: to make them takes longer than to execute them.
_DELETE = t.spares.delete().where(_P.sliver == sa.bindparam("b_sliver"))
_UPDATE = t.slivers.update().where(_S.id == sa.bindparam("b_sliver"))


@dataclass(frozen=True, slots=True)
class Kind:
    """What all spares of one setting have in common. image: sha256. boot: as chosen for the image."""

    spec: SliceSpec
    image: str
    boot: Boot
    count: int

    @property
    def key(self) -> tuple[object, ...]:
        spec = self.spec
        return (spec.type, self.image, self.boot, spec.machine, spec.init, spec.limits, spec.ports)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done on a node. discard: sliver ids."""

    node: str
    discard: tuple[str, ...]
    add: tuple[Kind, ...]


def kinds(c: Connection, config: Config) -> list[Kind]:
    """The spares that the settings name, as far as their images are ready. Refused for a wrong setting.

    Without an image, that of requests without one; if there is none, the one that most slices of the type have, and
    without slices, the one whose spares there are.
    """
    found = []
    for text in config.spares.keep:
        sliver_type, *words = text.split()
        said = dict(word.split("=", 1) for word in words)  # the settings have been checked
        count = int(said.pop("count", "1"))
        raw: dict[str, Any] = {name: _NUMBERS.get(name, str)(value) for name, value in said.items()}
        body = request_defaults.complete(c, config, {**raw, "type": sliver_type, "name": SPARE, "project": ""})
        del body["project"]
        if body.get("image") is None:
            body["image"] = _most_used(c, sliver_type)
        if body["image"] is None:
            continue
        spec = specs.slice_spec(body, config, keyless=True)
        try:
            image = image_choice.find(c, spec.image, "")
        except Refused:
            continue
        found.append(Kind(spec, image.sha256, image_choice.check(image, spec), count))
    return found


def _most_used(c: Connection, sliver_type: str) -> str | None:
    """The image for all projects that most slices of the type have, by name; of equals, that of the newest slice."""
    l, i = t.slices.c, t.images.c
    query = sa.select(i.name).join(t.slices, l.image == i.sha256).where(l.type == sliver_type)
    everybodys = (i.project.is_(None), i.state == ImageState.READY)
    query = query.where(*everybodys).group_by(i.name, i.sha256)
    # Twice as many for another than the one that is kept: otherwise each create could replace the spares of all nodes.
    kept = sa.exists().where(_P.image == i.sha256, _P.type == sliver_type).correlate(t.images)
    most = sa.func.count() * sa.case((kept, 2), else_=1)
    used: str | None = c.scalar(query.order_by(most.desc(), sa.func.max(l.created_at).desc()).limit(1))
    if used is not None:
        return used
    left = sa.select(i.name).join(t.spares, _P.image == i.sha256).where(_P.type == sliver_type, *everybodys)
    return c.scalar(left.order_by(_P.created_at.desc()).limit(1))


def find(c: Connection, config: Config, spec: SliceSpec, image: str) -> Iterator[Row[*tuple[Any, ...]]]:
    """The spares that can become the only sliver of a slice with this specification, if they boot as it does.

    They are on nodes that have room for it. image: sha256. Only network rates, guarantee and weight may differ, and of
    a container the disk limit and `LIVE_LIMITS`; those that differ least come first.
    """
    where = spec.where
    if not spec.warm or spec.count != 1 or spec.user_data or where.apart or where.each:
        return
    values = {"type": spec.type, "image": image, "machine": spec.machine, "init": spec.init, "ports": spec.ports}
    now = utcnow()
    values |= {"nodes": list(where.nodes), "site": where.site, **asdict(spec.limits), "since": now - placement.SILENT}
    for row in c.execute(_statement(spec.type, bool(where.nodes), bool(where.site)), values).all():
        with suppress(Refused):
            node = nodes.of_row(row, config, now).candidate
            if node.trouble:
                continue
            placement.check_able(node, spec)
            placement.check_capacity(node, config.limits, 1, spec.limits)
            yield row


def _changed(sliver_type: SliverType) -> Sequence[str]:
    """The limits that a running sliver takes over."""
    always = (*_RATES, "memory_guarantee", "memory_weight")
    return (*always, "disk", *LIVE_LIMITS) if sliver_type is SliverType.LXC else always


@cache
def _statement(sliver_type: SliverType, on_nodes: bool, at_site: bool) -> sa.Select[Any]:
    """Kept, because making it takes longer than its execution."""
    own = (_S.id.label("sliver"), _S.address.label("sliver_address"), _S.port_first, _S.port_count, _S.uid_first)
    equal = {one.name: _S[one.name].is_not_distinct_from(sa.bindparam(one.name)) for one in fields(Limits)}
    changed = _changed(sliver_type)
    same = (condition for name, condition in equal.items() if name not in changed)
    query = nodes.query("", ALL).add_columns(*own, _P.boot).join(t.slivers, _S.node == _N.name)
    query = query.join(t.spares, _P.sliver == _S.id).where(_ready(), _usable(), *same)
    query = query.where(_P.type == sa.bindparam("type"), _P.image == sa.bindparam("image"))
    query = query.where(_P.machine == sa.bindparam("machine"), _P.init == sa.bindparam("init"))
    query = query.where(_S.port_count == sa.bindparam("ports"), is_spare())
    if on_nodes:
        query = query.where(_N.name.in_(sa.bindparam("nodes", expanding=True)))
    if at_site:
        query = query.where(_N.site == sa.bindparam("site"))
    query = query.where(_N.agent_seen_at >= sa.bindparam("since", type_=_N.agent_seen_at.type))
    if sliver_type is SliverType.LXC:  # a program of its image may have grown with the memory of the spare
        query = query.where(2 * sa.func.coalesce(_S.usage_working, 0) <= sa.bindparam("memory"))
    different = (sa.case((equal[name], 0), else_=1) for name in LIVE_LIMITS)
    return query.order_by(functools.reduce(operator.add, different), _P.created_at).limit(_MOST_FOUND)


def is_spare() -> sa.ColumnElement[bool]:
    """True for all spares. Without it, SQLite reads all slivers to find them."""
    return _S.id.in_(sa.select(_P.sliver))


def take(c: Connection, sliver: str, slice_id: str, spec: SliceSpec, now: datetime) -> None:
    """Make a spare the sliver of a slice, whose row exists. Refused(CONFLICT) if another transaction took it first."""
    if not c.execute(_DELETE, {"b_sliver": sliver}).rowcount:
        raise Refused(Code.CONFLICT, "a concurrent request took the sliver", hint="try again")
    limits = {name: getattr(spec.limits, name) for name in _changed(spec.type)}
    values = {"slice": slice_id, "desired": Desired.RUNNING, "phase": Phase.PENDING, "updated_at": now, **limits}
    c.execute(_UPDATE, {"b_sliver": sliver, **values})


def discard(c: Connection, which: sa.ColumnElement[bool], now: datetime) -> None:
    """Delete spares. which: a condition on the tables of spares and slivers."""
    query = sa.select(_S.id, _S.node).join(t.spares, _P.sliver == _S.id).where(which, _S.desired != Desired.ABSENT)
    found = {row.id: row.node for row in c.execute(query.where(is_spare()))}
    if found:
        c.execute(t.slivers.update().where(_S.id.in_(found)).values(desired=Desired.ABSENT, updated_at=now))
        operations.add(c, "delete", operations.Subject(slice_name=SPARE, slivers=found), USER, now)


def fill(store: Store, config: Config) -> None:
    """Have as many spares as the settings want on each node, a few at a time; on one that joined, of images it has.

    Requests go first: nothing is made while others wait for the node. Does nothing during the hold after a restore.
    """
    now = utcnow()
    with store.read() as c:
        if incarnation.held(c) is not None or not _due(c, config, now):
            return
    with store.write() as c:
        due = _due(c, config, now)
        for work in random.sample(due, min(len(due), _MOST_NODES)):  # those that cannot be served do not stop others
            if work.discard:
                discard(c, _S.id.in_(work.discard), now)
            for kind in work.add:
                with suppress(Refused):  # the free ports are scattered
                    add(c, config, work.node, kind, now)
    wake(config.wake_socket)


def add(c: Connection, config: Config, node: str, kind: Kind, now: datetime) -> None:
    """Insert a spare and the operation that makes it."""
    spec, row, id_ = kind.spec, nodes.find(c, config, node), names.sliver_id(names.new_tag(), 0)
    given = nodes.given(c, node)
    (grant,), cursors = allocate.allocate(row.candidate.network, given, row.cursors, 1, spec.ports)
    nodes.move_cursors(c, {node: cursors})
    sliver_rows.insert(c, [(id_, node, grant)], spec.limits, now, None)
    said = {"type": spec.type, "image": kind.image, "boot": kind.boot, "machine": spec.machine, "init": spec.init}
    c.execute(t.spares.insert().values({**said, "sliver": id_, "created_at": now}))
    subject = operations.Subject(slice_name=SPARE, image=kind.image, slivers={id_: node})
    operations.add(c, "spare", subject, USER, now)


def _ready() -> sa.ColumnElement[bool]:
    return sa.and_(_S.desired == Desired.RUNNING, _S.phase == Phase.RUNNING, _S.host_key != "")


def _usable() -> sa.ColumnElement[bool]:
    """The nodes whose spares a slice may take."""
    return sa.and_(_N.state == NodeState.ACTIVE, ~_N.drained, _N.silent_since.is_(None))


def _due(c: Connection, config: Config, now: datetime) -> list[_Work]:
    """What is to be done on the nodes that report. The spares of others stay as they are until these return."""
    wanted = kinds(c, config)
    rows = c.execute(
        sa.select(*_S, _P.type, _P.image, _P.boot, _P.machine, _P.init, _P.created_at)
        .join(t.spares, _P.sliver == _S.id)
        .where(_S.desired != Desired.ABSENT, is_spare())
        .order_by(_P.created_at)
    ).all()
    if not (wanted or rows):
        return []
    of_node: dict[str, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    for row in rows:
        of_node[row.node].append(row)
    having = [(kind, _having(c, kind)) for kind in wanted]
    busy, work = operation_parts.busy(c), []
    for found in c.execute(nodes.query("", ALL).where(_N.silent_since.is_(None)).order_by(_N.name)):
        node, joined = nodes.of_row(found, config, now).candidate, found.identity is not None
        able = [kind for kind, there in having if not joined or node.name in there]
        here = able if _has_spares(node, joined) and _has_room(node, config, able) else []
        stale, missing = _difference(here, of_node[node.name], config.spares.longest, now)
        work.append(_Work(node.name, stale, () if node.name in busy else missing[:_AT_ONCE]))
    return [one for one in work if one.discard or one.add]


def _having(c: Connection, kind: Kind) -> set[str]:
    """The nodes that have the files from which such a spare is made."""
    there = nodes.has_files(kind.image, needs(kind.spec.type, kind.boot))
    return set(c.scalars(sa.select(_N.name).join(t.image_nodes, there)))


def _has_spares(node: placement.Candidate, joined: bool) -> bool:
    """Whether the node may have spares. Agents of earlier versions cannot have them on hosts that joined."""
    return not node.drained and not node.trouble and (not joined or node.facts.get("spares") is True)


def _difference(
    wanted: Sequence[Kind], rows: Sequence[Row[*tuple[Any, ...]]], longest: timedelta, now: datetime
) -> tuple[tuple[str, ...], tuple[Kind, ...]]:
    """The spares of a node that are to be discarded, and those that it lacks. Pure."""
    left = Counter({kind.key: kind.count for kind in wanted})
    stale = []
    for row in rows:
        age = now - row.created_at
        if age > (_RETRY if row.phase == Phase.FAILED else longest) or not left[_key(row)]:
            stale.append(row.id)
        else:
            left[_key(row)] -= 1
    return tuple(stale), tuple(kind for kind in wanted for _ in range(left[kind.key]))


def _key(row: Row[*tuple[Any, ...]]) -> tuple[object, ...]:
    limits = Limits(**{one.name: getattr(row, one.name) for one in fields(Limits)})
    return (row.type, row.image, row.boot, row.machine, row.init, limits, row.port_count)


def _has_room(node: placement.Candidate, config: Config, wanted: Sequence[Kind]) -> bool:
    """Whether requests do not need what these spares use."""
    total, available = node.facts.get("memory"), node.facts.get("memory_available")
    if total and available is not None and available < total * _LEAST_MEMORY:
        return False
    ports = node.network.ports_last - node.network.ports_first + 1 - node.ports
    return ports // config.network.ports_per_sliver >= _ROOM + sum(kind.count for kind in wanted)

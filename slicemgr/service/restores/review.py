"""List how the nodes differ from a restored database, release what is not wanted, and end the hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr import sliver_record
from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired, ImageState, NodeState, Phase, Sliver
from slicemgr.service.nodes import operations
from slicemgr.store import Store, allocations, incarnation
from slicemgr.store import tables as t
from slicemgr.store.incarnation import REVIEW, Incarnation
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

LEASE = timedelta(days=1)  # of slices whose lease ended between backup and review: it may have been renewed
_LOST = "its root was lost before the restore; a start makes a new one from the image"
ALSO_ON = "also on"  # in `changed`: a node that has the sliver, which the rows place on another node
_COLUMNS = frozenset({"desired", "generation", "epoch", "origin", "inherited", "disk"})


@dataclass(frozen=True, slots=True)
class Found:
    """A sliver without a row. record: None if the node has no readable record, and it cannot be adopted."""

    node: str
    sliver: str
    state: str
    record: Sliver | None
    snapshots: tuple[str, ...]
    released: bool
    detail: str

    @property
    def tag(self) -> str:
        return self.sliver.rpartition("-")[0]

    @property
    def name(self) -> str:
        """The name of its slice, "" if unknown."""
        return "" if self.record is None else self.record.slice_name


@dataclass(frozen=True, slots=True)
class Lost:
    """A slice of the rows, with those of its slivers that have no root on their node."""

    tag: str
    name: str
    project: str
    slivers: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Review:
    """The differences that agents have reported.

    silent: nodes without a report. joined: nodes that stop what has no row when the hold ends. images: names of images
    whose files a node lacks. changed: slivers that the host has in a newer state than the rows, which take it over at
    the end of the hold.
    """

    held: Incarnation
    silent: tuple[str, ...]
    joined: frozenset[str]
    found: tuple[Found, ...]
    lost: tuple[Lost, ...]
    images: tuple[str, ...]
    changed: Mapping[str, Mapping[str, Any]]

    @property
    def undecided(self) -> tuple[Found, ...]:
        """What prevents the end of the hold. A node that joined removes what was released only after it."""
        return tuple(one for one in self.found if not (one.released and one.node in self.joined))


def review(c: Connection) -> Review:
    """The differences. Refused(CONFLICT) unless the database is on hold."""
    held = incarnation.held(c)
    if held is None:
        raise Refused(Code.CONFLICT, "the database is not on hold", hint="it is after `slicemgr restore FILE`")
    h = t.host_reports.c
    reports = {row.node: row.found for row in c.execute(sa.select(h.node, h.found).where(h.incarnation == held.number))}
    n = t.nodes.c
    nodes = c.scalars(sa.select(n.name).where(n.state == NodeState.ACTIVE).order_by(n.name))
    gone = {sha256 for one in reports.values() for sha256 in one["images"]}
    i = t.images.c
    return Review(
        held,
        tuple(one for one in nodes if one not in reports),
        frozenset(c.scalars(sa.select(n.name).where(n.identity.is_not(None)))),
        found(c),
        _lost(c, {sliver for one in reports.values() for sliver in one["lost"]}),
        tuple(c.scalars(sa.select(i.name).where(i.sha256.in_(gone)).order_by(i.name))),
        {sliver: columns for one in reports.values() for sliver, columns in one["changed"].items()},
    )


def notice(c: Connection) -> str:
    """The state of the hold for pages, "" without one."""
    held = incarnation.held(c)
    return "" if held is None else held.says()


def found(c: Connection) -> tuple[Found, ...]:
    """The slivers without a row, of all nodes."""
    u = t.unclaimed.c
    return tuple(map(_found, c.execute(sa.select(t.unclaimed).order_by(u.sliver, u.node)).all()))


def _found(row: Row[*tuple[Any, ...]]) -> Found:
    try:
        record = None if row.record is None else sliver_record.from_json(row.record)
    except Refused:
        record = None
    return Found(row.node, row.sliver, row.state, record, tuple(row.snapshots), row.released, row.detail)


def _lost(c: Connection, slivers: Collection[str]) -> tuple[Lost, ...]:
    s, l = t.slivers.c, t.slices.c
    by_slice: dict[str, list[str]] = defaultdict(list)
    for sliver in c.execute(sa.select(s.id, s.slice).where(s.id.in_(slivers)).order_by(s.serial)):
        by_slice[sliver.slice].append(sliver.id)
    query = (
        sa.select(l.id, l.name, l.project, l.count.label("total")).where(l.id.in_(by_slice)).order_by(l.project, l.name)
    )
    return tuple(
        Lost(row.id, row.name, row.project, tuple(by_slice[row.id]), row.total) for row in c.execute(query).all()
    )


def select(all_found: Sequence[Found], wanted: str) -> list[Found]:
    """The slivers without a row of one slice, by its name, its tag or a sliver. Refused if it is ambiguous."""
    chosen = [one for one in all_found if wanted in (one.tag, one.sliver)]
    chosen = chosen or [one for one in all_found if wanted == one.name]
    tags = sorted({one.tag for one in chosen})
    if len(tags) > 1:
        raise Refused(Code.CONFLICT, f"several slices are called {wanted!r}", hint=f"give the id: {', '.join(tags)}")
    return [one for one in all_found if one.tag in tags]


def release(store: Store, config: Config, wanted: str) -> str:
    """Let the agents remove the slivers of a slice without a row, or delete a slice whose roots are gone.

    Returns what happens, as a text. Refused(NOT_FOUND), and (CONFLICT) if some of its roots exist.
    """
    with store.write() as c:
        all_found, now = review(c), utcnow()
        chosen = select(all_found.found, wanted)
        rows = [one for one in all_found.lost if wanted in (one.tag, one.name)]
        if chosen and rows and wanted not in (chosen[0].tag, rows[0].tag):
            hint = f"give the id: {chosen[0].tag} (without a row), {rows[0].tag} (without roots)"
            raise Refused(Code.CONFLICT, f"several slices are called {wanted!r}", hint=hint)
        if chosen:
            u, ids = t.unclaimed.c, [one.sliver for one in chosen]
            c.execute(t.unclaimed.update().where(u.sliver.in_(ids)).values(released=True))
            detail = f"without a row: {', '.join(ids)}"
            operations.note(c, ADMIN, "restore release", now, slice=chosen[0].name, detail=detail)
            done = _released(chosen, all_found.joined)
        elif rows:
            done = _delete_lost(c, rows, now)
        else:
            raise Refused(Code.NOT_FOUND, f"nothing called {wanted[:80]!r} is to be reviewed", hint=f"`{REVIEW}`")
    wake(config.wake_socket)
    return done


def _released(chosen: Sequence[Found], joined: Collection[str]) -> str:
    """What happens with released slivers, as a text."""
    now = [one.sliver for one in chosen if one.node not in joined]
    later = [one.sliver for one in chosen if one.node in joined]
    said = [f"the agent removes {', '.join(now)}"] if now else []
    if later:
        said.append(f"{', '.join(later)}: stopped after the end of the hold, and the disks kept for a day")
    return "; ".join(said)


def _delete_lost(c: Connection, rows: Sequence[Lost], now: datetime) -> str:
    if len(rows) > 1:
        hint = f"give the id: {', '.join(one.tag for one in rows)}"
        raise Refused(Code.CONFLICT, f"several slices are called {rows[0].name!r}", hint=hint)
    [one] = rows
    if len(one.slivers) < one.count:
        hint = "delete it with `slicectl delete` after the end of the hold"
        raise Refused(Code.CONFLICT, f"some slivers of slice {one.name} exist", hint=hint)
    allocations.free(c, t.slivers.c.slice == one.tag)
    c.execute(t.slices.delete().where(t.slices.c.id == one.tag))
    about = {"slice": one.name, "project": one.project}
    operations.note(c, ADMIN, "delete", now, **about, detail="its roots were lost before a restore")
    return f"slice {one.name} of project {one.project} is deleted; nothing of it existed"


def finish(store: Store, config: Config, without: Collection[str] = ()) -> Review:
    """End the hold; what was reported. without: nodes that are not waited for, because they no longer exist.

    Refused(CONFLICT) while a node has not reported, or a sliver without a row is neither adopted nor removed.
    """
    with store.write() as c:
        last, now = review(c), utcnow()
        if silent := [one for one in last.silent if one not in without]:
            hint = f"start its agent, or leave it out with `--without {silent[0]}` if it no longer exists"
            raise Refused(Code.CONFLICT, f"node {silent[0]} has not reported what it runs", hint=hint)
        if last.undecided:
            one = last.undecided[0]
            wait = "wait until the agent has removed it" if one.released else f"adopt or release it, see `{REVIEW}`"
            raise Refused(Code.CONFLICT, f"sliver {one.sliver} on {one.node} has no row", hint=one.detail or wait)
        _take_over(c, last)
        _extend_leases(c, last.held, now)
        incarnation.end(c, now)
        operations.note(c, ADMIN, "restore finish", now, detail=f"incarnation {last.held.number}")
    wake(config.wake_socket)
    return last


def _take_over(c: Connection, last: Review) -> None:
    """Bring the rows up to date with the hosts. Slivers without a root stop: a new root would hide the loss."""
    s = t.slivers.c
    for sliver, columns in last.changed.items():
        values = {name: value for name, value in columns.items() if name in _COLUMNS}
        if values:
            allocations.free(c, s.id == sliver)
            c.execute(t.slivers.update().where(s.id == sliver).values(**values))
            allocations.take(c, s.id == sliver)
        insert_snapshots(c, sliver, columns.get("snapshots", ()))
    i = t.images.c
    gone = (i.name.in_(last.images), i.state == ImageState.READY)
    c.execute(t.images.update().where(*gone).values(state=ImageState.MISSING))
    lost = [sliver for one in last.lost for sliver in one.slivers]
    stopped = {"desired": Desired.STOPPED, "phase": Phase.STOPPED, "error": _LOST}
    c.execute(t.slivers.update().where(s.id.in_(lost), s.desired != Desired.ABSENT).values(**stopped))


def insert_snapshots(c: Connection, sliver: str, ids: Collection[str]) -> None:
    """Insert rows of snapshots that exist on a node, but not those of another slice; their names are lost."""
    l, n, now = t.slices.c, t.snapshots.c, utcnow()
    tag = sliver.rpartition("-")[0]
    owner = c.scalar(sa.select(l.owner).where(l.id == tag))
    for id in ids:
        of = c.scalar(sa.select(n.slice).where(n.id == id))
        if of not in (None, tag):
            continue
        if of is None:
            row = {"id": id, "slice": tag, "name": f"restored-{id}", "user": owner, "created_at": now}
            c.execute(t.snapshots.insert().values(**row))
        c.execute(t.sliver_snapshots.insert().values(snapshot=id, sliver=sliver, made_at=now))


def _extend_leases(c: Connection, held: Incarnation, now: datetime) -> None:
    """Extend leases that ended since the backup, or end within a day: a renewal after the backup is unknown."""
    l = t.slices.c
    ended = (l.expires_at > held.backup_at, l.expires_at < now + LEASE, l.lease_ended_at.is_(None))
    c.execute(t.slices.update().where(*ended).values(expires_at=now + LEASE, reminded=None))

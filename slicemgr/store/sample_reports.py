"""What a joined node used, on its way to the centre: the hours of its slivers, and the 5-minute rows of the node.

The row of an hour is reported while the hour continues, and when it is over. Each report has the whole hour so far, so
one that arrives again, or replaces another, counts once. Finer samples of slivers stay on the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.figures import HOURS, MINUTES, RAW
from slicemgr.store import samples
from slicemgr.store import tables as t
from slicemgr.store.dialect import insert
from slicemgr.store.updates import NodeSampled, SliverSampled

KEPT = 7 * 86400  # seconds for which a node keeps what the centre does not have yet
_EVERY = 900  # seconds between two reports of an hour
_KEYS = ("node", "resolution", "at", "sliver")

Found = list[NodeSampled | SliverSampled]


# --- on the node ------------------------------------------------------------------------------------------------------


def newest(c: Connection, node: str) -> int:
    """The time of the newest 5-minute row; 0: there is none."""
    n = t.node_samples.c
    return c.scalar(sa.select(sa.func.max(n.at)).where(n.node == node, n.resolution == MINUTES)) or 0


def since(c: Connection, node: str, after: int) -> Found:
    """What to report once there are 5-minute rows later than `after`."""
    n = t.node_samples.c
    query = sa.select(t.node_samples).where(n.node == node, n.resolution == MINUTES, n.at > after).order_by(n.at)
    rows = c.execute(query).all()
    found: Found = [NodeSampled(MINUTES, row.at, _values(row)) for row in rows]
    if rows and after // _EVERY < rows[-1].at // _EVERY:
        found += _hours(c, node, max(after, rows[0].at - MINUTES))
    return found


def last(c: Connection, sliver: str) -> Found:
    """What a sliver that is being deleted used since its last report. Call it while its row exists."""
    s = t.slivers.c
    row = c.execute(sa.select(s.node, s.serial).where(s.id == sliver)).first()
    return [] if row is None else _hours(c, row.node, newest(c, row.node), [row.serial])


def everything(c: Connection) -> Found:
    """All hours of the slivers that exist, for a centre that was restored."""
    nodes = c.scalars(sa.select(t.slivers.c.node).distinct().order_by(t.slivers.c.node)).all()
    return [one for node in nodes for one in _hours(c, node, int(time.time()) - KEPT)]


def _hours(c: Connection, node: str, after: int, serials: Sequence[int] | None = None) -> Found:
    """The hours from the one that contains the time after `after`, also the present one; of all slivers, or of some."""
    start, done = after // HOURS * HOURS, newest(c, node)
    found: Found = []
    s = t.slivers.c
    ids = {row.serial: row.id for row in c.execute(sa.select(s.serial, s.id).where(s.node == node))}
    for table in (t.node_samples, t.samples):
        k = table.c
        fine = sa.or_(sa.and_(k.resolution == MINUTES, k.at <= done), sa.and_(k.resolution == RAW, k.at > done))
        chosen = [k.node == node, fine, k.at > start]
        if table is t.samples and serials is not None:
            chosen.append(k.sliver.in_(serials))
        for row in c.execute(samples.sums(table, node, HOURS, chosen)):
            if table is t.node_samples:
                found.append(NodeSampled(HOURS, row.at, _values(row)))
            elif row.sliver in ids:
                found.append(SliverSampled(ids[row.sliver], row.at, _values(row)))
    return found


def _values(row: sa.Row[Any]) -> dict[str, Any]:
    known = ((name, value) for name, value in row._mapping.items() if name not in _KEYS and value is not None)
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in known}


# --- at the centre ----------------------------------------------------------------------------------------------------


def record_nodes(node: str, c: Connection, updates: Iterable[NodeSampled]) -> None:
    """Store the rows of a node; a later one replaces an earlier one."""
    rows = [{"node": node, "resolution": one.resolution, "at": one.at, **one.values} for one in updates]
    _upsert(c, t.node_samples, rows)


def record_slivers(node: str, c: Connection, updates: Sequence[SliverSampled]) -> None:
    """Store hours of slivers of a node, and charge their projects with what is new in them."""
    s, l = t.slivers.c, t.slices.c
    query = sa.select(s.id, s.serial, l.project).join(t.slices, l.id == s.slice).where(s.node == node)
    known = {row.id: row for row in c.execute(query.where(s.id.in_({one.sliver for one in updates})))}
    fresh = {}
    for one in updates:
        if one.sliver in known:
            serial = known[one.sliver].serial
            fresh[one.at, serial] = {"node": node, "resolution": HOURS, "at": one.at, "sliver": serial, **one.values}
    before = stored(c, node, fresh)
    rows = [row for key, row in fresh.items() if key not in before or row["seconds"] >= before[key]["seconds"]]
    projects = {row.serial: row.project for row in known.values()}
    for row in rows:
        samples.charge(c, projects[row["sliver"]], row, before.get((row["at"], row["sliver"])))
    _upsert(c, t.samples, rows)


def stored(c: Connection, node: str, keys: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Mapping[str, Any]]:
    """The rows of hours that the centre has. keys: time and serial of each."""
    k, wanted = t.samples.c, set(keys)
    times, serials = {at for at, _ in wanted}, {serial for _, serial in wanted}
    query = sa.select(t.samples).where(k.node == node, k.resolution == HOURS, k.at.in_(times), k.sliver.in_(serials))
    return {(row.at, row.sliver): row._asdict() for row in c.execute(query)}


def _upsert(c: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    statement = insert(c, table)
    keys = [column.name for column in table.primary_key]
    new = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    c.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), list(rows))

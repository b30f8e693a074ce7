"""Insert the rows of new slivers, which wait for their agents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import Desired, Limits, Phase
from slicemgr.policy.allocate import Grant
from slicemgr.store import tables as t

_S = t.slivers.c


def insert(
    c: Connection, placed: Iterable[tuple[str, str, Grant]], limits: Limits, now: datetime, slice_id: str | None
) -> None:
    """Insert slivers and their ports. placed: id, node and allocation of each, in the order of their indexes.

    slice_id: None for spares.
    """
    same = {"slice": slice_id, "desired": Desired.RUNNING, "phase": Phase.PENDING, **asdict(limits), "updated_at": now}
    rows = [
        {**same, "id": id_, "idx": index, "node": node, **granted(grant)}
        for index, (id_, node, grant) in enumerate(placed)
    ]
    c.execute(t.slivers.insert(), rows)
    those = _S.slice == slice_id if slice_id else _S.id.in_([row["id"] for row in rows])
    ports = _ports(those, max(row["port_count"] for row in rows))
    c.execute(t.ports.insert().from_select(["node", "port", "sliver"], ports))


def granted(grant: Grant) -> dict[str, str | int]:
    """The columns of a sliver with what it has been allocated."""
    return {
        "address": grant.address,
        "uid_first": grant.uid_first,
        "port_first": grant.ports.first,
        "port_count": grant.ports.count,
    }


def _ports(those: sa.ColumnElement[bool], most: int) -> sa.Select[Any]:
    """The rows of the ports of slivers, which have at most `most` each."""
    first = sa.select(sa.literal(0).label("number")).cte("numbers", recursive=True)
    numbers = first.union_all(sa.select(first.c.number + 1).where(first.c.number < most - 1))
    rows = sa.select(_S.node, _S.port_first + numbers.c.number, _S.serial).where(those)
    return rows.join(numbers, numbers.c.number < _S.port_count)

"""Insert the rows of new slivers, which wait for their agents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from functools import cache

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
    which = {"slice": slice_id} if slice_id else {"ids": [row["id"] for row in rows]}
    c.execute(_insert_ports(slice_id is not None), {**which, "most": max(row["port_count"] for row in rows)})


def granted(grant: Grant) -> dict[str, str | int]:
    """The columns of a sliver with what it has been allocated."""
    return {
        "address": grant.address,
        "uid_first": grant.uid_first,
        "port_first": grant.ports.first,
        "port_count": grant.ports.count,
    }


@cache
def _insert_ports(of_slice: bool) -> sa.Insert:
    """Insert the ports of the slivers of a slice, or of `ids`, which have at most `most` each.

    Kept, because making it takes longer than its execution.
    """
    most = sa.bindparam("most", type_=sa.Integer)
    first = sa.select(sa.literal(0).label("number")).cte("numbers", recursive=True)
    numbers = first.union_all(sa.select(first.c.number + 1).where(first.c.number < most - 1))
    those = _S.slice == sa.bindparam("slice") if of_slice else _S.id.in_(sa.bindparam("ids", expanding=True))
    rows = sa.select(_S.node, _S.port_first + numbers.c.number, _S.serial).where(those)
    rows = rows.join(numbers, numbers.c.number < _S.port_count)
    return t.ports.insert().from_select(["node", "port", "sliver"], rows)

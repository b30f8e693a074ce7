"""Connections that the service asks nodes to open: the web process inserts them, the hub sends each once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import Dial, DialPurpose
from slicemgr.store import tables as t
from slicemgr.store.engine import Store

_ANY = sa.select(t.dials.c.secret).limit(1)  # made once: it is read often
VALID = timedelta(seconds=30)  # then no request waits for the connection any more


def ask(c: Connection, node: str, dial: Dial, now: datetime) -> None:
    """Have a node open a connection."""
    row = {"secret": dial.secret, "purpose": dial.purpose, "user": dial.user, "sliver": dial.sliver}
    c.execute(t.dials.insert().values(**row, node=node, created_at=now))


def take(store: Store, now: datetime) -> Sequence[tuple[str, Dial]]:
    """The orders to send, with the identity of the node, oldest first. They are deleted; old ones are not returned.

    Without orders it only reads.
    """
    d, n = t.dials.c, t.nodes.c
    with store.read() as c:
        if c.scalar(_ANY) is None:
            return []
    with store.write() as c:
        columns = (n.identity, d.secret, d.purpose, d.user, d.sliver, d.created_at)
        rows = c.execute(sa.select(*columns).join(t.nodes, n.name == d.node).order_by(d.created_at)).all()
        c.execute(t.dials.delete().where(d.secret.in_([row.secret for row in rows])))
    fresh = [row for row in rows if row.identity is not None and now - row.created_at < VALID]
    return [(row.identity, Dial(row.secret, DialPurpose(row.purpose), row.user, row.sliver)) for row in fresh]

"""Delete old operations, events, stored answers and invitations, so that the database does not grow without bound."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slicemgr.config import Config
from slicemgr.model import OperationState
from slicemgr.service import idempotency
from slicemgr.service.leases import clock
from slicemgr.service.outbound import mail
from slicemgr.store import Store, samples
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_AT_ONCE = 500  # rows of a table in each call, to keep the transaction short
_NODES_AT_ONCE = 50  # whose samples are deleted in each call
_ENDED = (OperationState.DONE, OperationState.FAILED)


def forget(store: Store, config: Config, now: datetime | None = None) -> int:
    """Delete rows older than `store.keep_operations` and `store.keep_events`; the number of deleted rows.

    An operation that has not ended stays. Nothing is deleted while the clock is doubted (see service.leases.clock).
    """
    now = now or utcnow()
    o, e, m = t.operations.c, t.events.c, t.mails.c
    old = sa.select(o.id).where(o.state.in_(_ENDED), o.finished_at < now - config.store.keep_operations)
    older = sa.select(e.id).where(e.at < now - config.store.keep_events)
    i = t.project_invitations.c
    ended = sa.select(i.id).where(i.expires_at <= now)
    over = sa.select(m.key).where(m.state.in_((mail.SENT, mail.FAILED)), m.created_at < now - config.store.keep_events)
    with store.read() as c:
        if clock.doubted(c):
            return 0
        nodes = samples.outdated(c, config.record, int(now.timestamp()), _NODES_AT_ONCE)
    for node in nodes:  # in a transaction each, because a node can have many of them
        with store.write() as c:
            samples.forget(c, node, config.record, int(now.timestamp()))
    with store.write() as c:
        count = idempotency.forget(c, now)
        for column, at, query in (
            (o.id, o.finished_at, old),
            (e.id, e.at, older),
            (m.key, m.created_at, over),
            (i.id, i.expires_at, ended),
        ):
            ids = c.scalars(query.order_by(at).limit(_AT_ONCE)).all()
            if ids:
                count += c.execute(sa.delete(column.table).where(column.in_(ids))).rowcount
    return count

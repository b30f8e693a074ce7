"""Forget operations, events, answers and invitations that are long over: the database does not grow for ever."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slicemgr.config import Config
from slicemgr.model import OperationState
from slicemgr.service import idempotency
from slicemgr.service.leases import clock
from slicemgr.service.outbound import mail
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_AT_ONCE = 500  # rows of a kind for each call: a short transaction, however much there is to forget
_ENDED = (OperationState.DONE, OperationState.FAILED)


def forget(store: Store, config: Config, now: datetime | None = None) -> int:
    """Delete what is older than `store.keep_operations` and `store.keep_events`; how many rows that were.

    An operation that has not ended stays. Nothing goes while the clock is distrusted (see service.leases.clock).
    """
    now = now or utcnow()
    o, e, m = t.operations.c, t.events.c, t.mails.c
    old = sa.select(o.id).where(o.state.in_(_ENDED), o.finished_at < now - config.store.keep_operations)
    older = sa.select(e.id).where(e.at < now - config.store.keep_events)
    i = t.project_invitations.c
    ended = sa.select(i.id).where(i.expires_at <= now)
    over = sa.select(m.key).where(m.state.in_((mail.SENT, mail.FAILED)), m.created_at < now - config.store.keep_events)
    with store.write() as c:
        if clock.doubted(c):
            return 0
        count = 0
        count += idempotency.forget(c, now)
        for column, query in ((o.id, old), (e.id, older), (m.key, over), (i.id, ended)):
            ids = c.scalars(query.order_by(column).limit(_AT_ONCE)).all()
            if ids:
                count += c.execute(sa.delete(column.table).where(column.in_(ids))).rowcount
    return count

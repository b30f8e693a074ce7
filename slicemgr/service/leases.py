"""End the leases that are over: stop first, delete after the grace."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slicemgr.config import Config
from slicemgr.model import Desired
from slicemgr.policy import leases as policy
from slicemgr.policy.leases import Verdict
from slicemgr.service import slices
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.store.wake import wake

USER = "lease"  # who is said to have stopped or deleted


def expire(store: Store, config: Config, now: datetime | None = None) -> int:
    """Do what is due at `now` (the present); how many slices were stopped or deleted. Call it every minute or so."""
    now = now or utcnow()
    with store.write() as c:
        row = c.execute(sa.select(t.clock.c.seen_at, t.clock.c.trusted_from)).first()
        clock = policy.tick(None if row is None else policy.Clock(*row), now)
        values = {"seen_at": clock.seen_at, "trusted_from": clock.trusted_from}
        c.execute(t.clock.insert().values(id=1, **values) if row is None else t.clock.update().values(**values))
        l = t.slices.c
        leaving = sa.exists().where(t.slivers.c.slice == l.id, t.slivers.c.desired == Desired.ABSENT)
        rows = {
            one.id: one
            for one in c.execute(sa.select(l.id, l.name, l.project, l.expires_at, l.lease_ended_at).where(~leaving))
        }
        verdicts = policy.due(
            [policy.Lease(one.id, one.expires_at, one.lease_ended_at) for one in rows.values()],
            clock,
            config.lease.grace,
        )
        for id_, verdict in verdicts.items():
            end = rows[id_].expires_at
            if verdict is Verdict.RESUME_LEASE:
                c.execute(t.slices.update().where(l.id == id_).values(lease_ended_at=None))
            elif verdict is Verdict.STOP:
                c.execute(t.slices.update().where(l.id == id_).values(lease_ended_at=now))
                slices.change(c, rows[id_], "stop", USER, now, why=f"its lease ended at {end:%Y-%m-%dT%H:%M:%SZ}")
            else:
                why = f"its lease ended at {end:%Y-%m-%dT%H:%M:%SZ} and was not renewed"
                slices.change(c, rows[id_], "delete", USER, now, why=why)
    done = sum(verdict is not Verdict.RESUME_LEASE for verdict in verdicts.values())
    if done:
        wake(config.wake_socket)
    return done

"""What is due for leases: send reminders, stop slices at the end, delete them after the grace period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired
from slicemgr.policy import leases as policy
from slicemgr.policy.leases import Lease, Verdict
from slicemgr.service.leases import clock
from slicemgr.service.leases import rules as lease_rules
from slicemgr.service.leases.clock import Uptime
from slicemgr.service.leases.rules import Rules
from slicemgr.service.nodes import operations
from slicemgr.service.outbound import mail
from slicemgr.service.slices import slices
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

USER = "lease"  # the actor in events and operations
_NEVER = datetime.min.replace(tzinfo=UTC)
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def expire(store: Store, config: Config, now: datetime | None = None, up: Uptime | None = None) -> int:
    """Do what is due at `now` (default: the present); the number of slices stopped or deleted. Call it about every
    minute.

    up: the uptime of the machine that the clock is compared with (default: of this machine).
    """
    now = now or utcnow()
    with store.write() as c:
        at = clock.compare(c, now, up or clock.uptime()).judge(now)
        if incarnation.held(c) is not None:  # a lease may have been renewed after the backup
            return 0
        rows = {one.id: one for one in _near_the_end(c, at + lease_rules.earliest_reminder(c, config))}
        rules = lease_rules.all_of(c, config, {one.project for one in rows.values()})
        found = {id_: _lease(one, rules[one.project]) for id_, one in rows.items()}
        verdicts = policy.due(list(found.values()), at, config.lease.grace)
        for id_, verdict in verdicts.items():
            _carry_out(c, config, rows[id_], found[id_], verdict, rules[rows[id_].project], at)
    done = sum(verdict in (Verdict.STOP, Verdict.DELETE) for verdict in verdicts.values())
    if done:
        wake(config.wake_socket)
    return done


def _near_the_end(c: Connection, at: datetime) -> list[Row[*tuple[Any, ...]]]:
    """The slices whose lease ends by `at` or has ended, unless they are being deleted: nothing is due for others."""
    l = t.slices.c
    near = sa.or_(l.expires_at <= at, l.lease_ended_at > _NEVER)  # SQLite has no index for IS NOT NULL
    leaving = sa.exists().where(t.slivers.c.slice == l.id, t.slivers.c.desired == Desired.ABSENT)
    columns = (l.id, l.name, l.project, l.owner, l.expires_at, l.lease_ended_at, l.created_at, l.renewed_at, l.reminded)
    return list(c.execute(sa.select(*columns).where(near, ~leaving)).all())


def _lease(row: Row[*tuple[Any, ...]], rules: Rules) -> Lease:
    return Lease(
        row.id,
        row.expires_at,
        row.lease_ended_at,
        row.renewed_at or row.created_at,
        rules.lease.reminders,
        None if row.reminded is None else timedelta(seconds=row.reminded),
        rules.exempt,
    )


def _carry_out(
    c: Connection,
    config: Config,
    row: Row[*tuple[Any, ...]],
    lease: Lease,
    verdict: Verdict,
    rules: Rules,
    at: datetime,
) -> None:
    end = f"{row.expires_at:{_MOMENT}}"
    match verdict:
        case Verdict.REMIND:
            before = policy.reminder(lease, at) or timedelta(0)
            text = f"the lease ends at {end}: `slicectl renew {row.name} --lease {policy.text(rules.lease.default)}`"
            operations.note(c, USER, "lease reminder", at, slice=row.name, project=row.project, detail=text)
            _announce(c, config, row, f"the lease ends at {end}", text, at, reminded=int(before.total_seconds()))
        case Verdict.STOP:
            gone = f"{at + config.lease.grace:{_MOMENT}}"
            text = f"the lease ended at {end}; the slice is deleted at {gone} unless the lease is renewed"
            slices.change(c, row, "stop", USER, at, why=text)
            _announce(c, config, row, "stopped", f"stopped: {text}", at, lease_ended_at=at)
        case Verdict.DELETE:
            text = f"the lease ended at {end} and was not renewed"
            slices.change(c, row, "delete", USER, at, why=text)
            _announce(c, config, row, "deleted", f"deleted: {text}", at)
        case Verdict.RESUME_LEASE:
            why = "the leases of the project do not expire" if rules.exempt else "the clock was wrong"
            text = f"the lease continues because {why}; stopped slivers remain stopped: `slicectl start {row.name}`"
            operations.note(c, USER, "lease resumed", at, slice=row.name, project=row.project, detail=text)
            _announce(c, config, row, "the lease continues", text, at, lease_ended_at=None)


def _announce(
    c: Connection, config: Config, row: Row[*tuple[Any, ...]], short: str, text: str, at: datetime, **values: Any
) -> None:
    """Store the notice on the slice and send it by mail. The caller writes the event."""
    c.execute(t.slices.update().where(t.slices.c.id == row.id).values(lease_notice=text, **values))
    about = mail.About(row.owner, row.name, row.project)
    subject = f"slice {row.name} of project {row.project}: {short}"
    mail.queue(c, config, f"{row.id} {row.expires_at:{_MOMENT}} {text}", about, subject, _letter(config, row, text), at)


def _letter(config: Config, row: Row[*tuple[Any, ...]], text: str) -> str:
    where = f"\n{config.web.url}\n" if config.web.url else ""
    return f"Slice {row.name} of project {row.project}:\n\n{text}.\n{where}"

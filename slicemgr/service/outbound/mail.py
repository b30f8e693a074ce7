"""Outgoing mail: queued in the transaction of its cause, sent by the agent's process, retried, never sent twice.

A message is marked before its text goes to the server. If it is unknown whether the server accepted it (the connection
broke, the agent died), it is not sent again, and an event records that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.service.nodes import operations
from slicemgr.service.outbound.smtp import Letter, NotNow, Outcome, Refusal, Server, Unknown
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.dialect import insert
from slicemgr.store.updates import utcnow

WAITING, SENDING, SENT, FAILED = "waiting", "sending", "sent", "failed"
_AT_ONCE = 100  # messages in one call
_FIRST, _LONGEST = timedelta(minutes=1), timedelta(hours=1)  # between attempts, doubling


@dataclass(frozen=True, slots=True)
class About:
    """user: the recipient. slice and project: of the events about the message."""

    user: str
    slice: str = ""
    project: str = ""


def queue(c: Connection, config: Config, key: str, about: About, subject: str, body: str, now: datetime) -> None:
    """Queue a message to a user, in the transaction of its cause. key: at most one message is ever queued for each.

    Does nothing if no server is set, or the user has no address or is disabled.
    """
    if not config.mail.server:
        return
    u = t.users.c
    to = c.scalar(sa.select(u.email).where(u.name == about.user, u.enabled, u.email != ""))
    if to is None:
        return
    _insert(c, key, about, to, subject, body, now)


def queue_to_admins(c: Connection, config: Config, key: str, subject: str, body: str, now: datetime) -> None:
    """Queue a message to each admin of the testbed. key: at most one message is ever queued for each, to each admin."""
    u = t.users.c
    for admin in c.scalars(sa.select(u.name).where(u.admin, u.enabled)).all():
        queue(c, config, f"{key} {admin}", About(admin), subject, body, now)


def queue_to(c: Connection, config: Config, key: str, address: str, subject: str, body: str, now: datetime) -> bool:
    """Queue a message to an address without an account; whether it was queued. Its text is deleted once it was sent."""
    return bool(config.mail.server) and _insert(c, key, About(""), address, subject, body, now)


def _insert(c: Connection, key: str, about: About, to: str, subject: str, body: str, now: datetime) -> bool:
    row = {"key": key, "user": about.user, "slice": about.slice, "project": about.project, "recipient": to}
    letter = {**row, "subject": subject, "body": body, "state": WAITING, "created_at": now, "next_at": now}
    done = c.execute(insert(c, t.mails).values(**letter).on_conflict_do_nothing(index_elements=["key"]))
    return done.rowcount == 1


def deliver(store: Store, config: Config, now: datetime | None = None) -> int:
    """Send what is due; the number of messages that were processed. One caller at a time. Call it regularly, not in a
    request.
    """
    if not config.mail.server:
        return 0
    at, m = now or utcnow(), t.mails.c
    with store.write() as c:
        for row in c.execute(sa.select(t.mails).where(m.state == SENDING)).all():
            _fail(c, row, "it is unknown whether it was sent, because the agent ended", at)
        due = c.execute(
            sa.select(t.mails).where(m.state == WAITING, m.next_at <= at).order_by(m.next_at).limit(_AT_ONCE)
        )
        letters = due.all()
    taken = 0
    for row in letters:
        outcome = Server(config.mail).send(
            Letter(row.key, row.recipient, row.subject, row.body),
            lambda key=row.key: _mark(store, key),  # type: ignore[misc]
        )
        with store.write() as c:
            _note(c, config, row, outcome, at)
        taken += outcome is None
    return taken


def _mark(store: Store, key: str) -> None:
    with store.write() as c:
        c.execute(t.mails.update().where(t.mails.c.key == key).values(state=SENDING))


def _note(c: Connection, config: Config, row: sa.Row[*tuple[object, ...]], outcome: Outcome, at: datetime) -> None:
    update = t.mails.update().where(t.mails.c.key == row.key)
    match outcome:
        case None:
            c.execute(update.values(state=SENT, tries=row.tries + 1, error="", body=_kept(row)))
        case Refusal(why) | Unknown(why):
            _fail(c, row, why, at)
        case NotNow(why):
            if at - row.created_at > config.mail.patience:
                _fail(c, row, why, at)
                return
            wait = min(_LONGEST, _FIRST * 2 ** min(row.tries, 10))
            c.execute(update.values(state=WAITING, tries=row.tries + 1, next_at=at + wait, error=why))
            if row.tries == 0:
                _event(c, row, "mail delayed", why, at)


def _fail(c: Connection, row: sa.Row[*tuple[object, ...]], why: str, at: datetime) -> None:
    ended = {"state": FAILED, "tries": row.tries + 1, "error": why, "body": _kept(row)}
    c.execute(t.mails.update().where(t.mails.c.key == row.key).values(ended))
    _event(c, row, "mail failed", why, at)


def _kept(row: sa.Row[*tuple[object, ...]]) -> str:
    """The text to keep of a message that will not be sent again: that to an address has the secret of a link."""
    return str(row.body) if row.user else ""


def _event(c: Connection, row: sa.Row[*tuple[object, ...]], action: str, why: str, at: datetime) -> None:
    """Without the server's answer: the members of a project see its events, and the answer may contain the address."""
    plain = re.sub(re.escape(str(row.recipient)), "the address", why, flags=re.IGNORECASE)
    detail = f"to {row.user or 'an address without an account'}: {row.subject}: {plain}"
    operations.note(c, "agent", action, at, slice=str(row.slice), project=str(row.project), detail=detail)

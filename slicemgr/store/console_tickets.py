"""Tokens that open a console or a screen once: issued by the service, redeemed by the agent or the service."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.store import tables as t
from slicemgr.store.engine import Store

LIFETIME = timedelta(seconds=30)


class Ticket(NamedTuple):
    """The user and the sliver of a console or screen. credential: the id of the token or session that requested it."""

    user: str
    sliver: str
    credential: str = ""
    screen: bool = False


def give(c: Connection, ticket: Ticket, now: datetime) -> str:
    """Store a ticket and delete expired ones; its token."""
    c.execute(t.consoles.delete().where(t.consoles.c.expires_at <= now))
    token = secrets.token_urlsafe(32)
    row = {"hash": _digest(token), "created_at": now, "expires_at": now + LIFETIME, **ticket._asdict()}
    c.execute(t.consoles.insert().values(row))
    return token


def user_of(store: Store, token: str) -> str:
    """The user of a token; "" if it is unknown or was redeemed. Does not redeem it."""
    with store.read() as c:
        return str(c.scalar(sa.select(t.consoles.c.user).where(t.consoles.c.hash == _digest(token))) or "")


def is_remote(store: Store, token: str) -> bool:
    """Whether a token is of a sliver on a host that has joined the testbed."""
    o, s, n = t.consoles.c, t.slivers.c, t.nodes.c
    query = sa.select(o.hash).join(t.slivers, s.id == o.sliver).join(t.nodes, n.name == s.node)
    with store.read() as c:
        return c.scalar(query.where(o.hash == _digest(token), n.identity.is_not(None))) is not None


def take(store: Store, token: str, now: datetime) -> Ticket | None:
    """Redeem a token: its ticket. None if it is unknown, used or expired.

    An unknown token causes a read only, so that clients without a token cause no write transactions.
    """
    o = t.consoles.c
    mine = o.hash == _digest(token)
    with store.read() as c:
        if c.scalar(sa.select(o.hash).where(mine)) is None:
            return None
    with store.write() as c:
        columns = sa.select(o.user, o.sliver, o.credential, o.screen, o.expires_at)
        row = c.execute(columns.where(mine)).first()
        if row is None or not c.execute(t.consoles.delete().where(mine)).rowcount:
            return None
    return Ticket(*row[:4]) if row.expires_at > now else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

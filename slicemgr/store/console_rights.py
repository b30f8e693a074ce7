"""The current rights of users with open consoles, in a constant number of queries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import Account, ConsoleTarget, Credential, Role, Scope
from slicemgr.store import tables as t
from slicemgr.store.console_tickets import Ticket


@dataclass(frozen=True, slots=True)
class Rights:
    """By user name, credential id, sliver id. A missing key means that it no longer exists."""

    accounts: dict[str, Account]
    credentials: dict[str, Credential]
    targets: dict[str, ConsoleTarget]


def read(c: Connection, tickets: Collection[Ticket]) -> Rights:
    """The rows that `policy.consoles` needs for these tickets."""
    return Rights(
        _accounts(c, {one.user for one in tickets}),
        _credentials(c, {one.credential for one in tickets if one.credential}),
        _targets(c, {one.sliver for one in tickets}),
    )


def _accounts(c: Connection, users: Collection[str]) -> dict[str, Account]:
    u, m = t.users.c, t.members.c
    found = {
        row.name: Account(row.admin, row.enabled)
        for row in c.execute(sa.select(u.name, u.admin, u.enabled).where(u.name.in_(users)))
    }
    for row in c.execute(sa.select(m.user, m.project, m.role).where(m.user.in_(users))):
        found[row.user].roles[row.project] = Role(row.role)
    return found


def _credentials(c: Connection, ids: Collection[str]) -> dict[str, Credential]:
    k, s = t.tokens.c, t.sessions.c
    tokens = c.execute(sa.select(k.id, k.user, k.scope, k.expires_at).where(k.id.in_(ids)))
    found = {row.id: Credential(row.user, Scope(row.scope), row.expires_at) for row in tokens}
    sessions = c.execute(sa.select(s.id, s.user, s.expires_at).where(s.id.in_(ids)))
    found.update({row.id: Credential(row.user, Scope.WRITE, row.expires_at) for row in sessions})
    return found


def _targets(c: Connection, slivers: Collection[str]) -> dict[str, ConsoleTarget]:
    s, l = t.slivers.c, t.slices.c
    query = sa.select(s.id, s.idx, s.desired, l.name, l.project, l.owner).join(t.slices, l.id == s.slice)
    rows = c.execute(query.where(s.id.in_(slivers)))
    return {
        row.id: ConsoleTarget(f"{row.name}/{row.idx}", row.name, row.project, row.owner, row.desired) for row in rows
    }

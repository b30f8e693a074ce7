"""Requests of hosts that join: a token, and a certificate request. The signer answers it, never this process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.certificates import requests
from slicemgr.errors import Code, Refused
from slicemgr.model import NodeState
from slicemgr.service.accounts import authentication
from slicemgr.service.nodes import membership, operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_J = t.joins.c


@dataclass(frozen=True, slots=True)
class Membership:
    """What a host gets. identity: the name in its certificate. certificate: PEM; "": not issued yet."""

    node: str
    site: str
    identity: str
    certificate: str


def authority(store: Store) -> str:
    """The certificate of the testbed's authority, PEM. Refused(CONFLICT) if there is none."""
    with store.read() as c:
        a = t.authorities.c
        return str(c.scalar(sa.select(a.certificate).where(a.fingerprint == membership.authority(c))))


def join(store: Store, token: str, request: object, address: str) -> Membership:
    """Store the request of the token's first use, and return what was issued for it. address: of the client.

    The same token with the same request is the same use: a host may ask again until it has its certificate, for an
    hour. Refused(DENIED): the token is unknown, has expired, or came with another request before.
    """
    requests.public_key(request)
    with store.write() as c:
        row = _row(c, token)
        if not row.request:
            c.execute(t.joins.update().where(_J.node == row.node).values(request=request, address=address))
            operations.note(c, row.user, "node join request", utcnow(), detail=row.node, address=address)
        elif row.request != request:
            log.warning("a second host used the join token of node %s from %s", row.node, address)
            raise _void()
        certificate = c.scalar(sa.select(t.certificates.c.certificate).where(t.certificates.c.serial == row.serial))
    return Membership(row.node, row.site, row.identity, str(certificate or ""))


def withdraw(store: Store, token: str, request: object, address: str) -> str:
    """Undo a join that failed at its host: the name of the node, whose token is unused again until it expires.

    request: the one that came with the token. Refused(DENIED): the token has expired, or came with another request, or
    the node has connected since.
    """
    now, n = utcnow(), t.nodes.c
    with store.write() as c:
        row = _row(c, token)
        if not row.request or row.request != request or row.state not in (NodeState.ADDED, NodeState.JOINED):
            raise _void()
        membership.revoke(c, row.identity, now)
        c.execute(t.links.delete().where(t.links.c.identity == row.identity))
        c.execute(t.joins.update().where(_J.node == row.node).values(request="", address="", serial=""))
        identity = membership.new_identity()
        c.execute(t.nodes.update().where(n.name == row.node).values(state=NodeState.ADDED, identity=identity))
        operations.note(c, row.user, "node join withdrawn", now, detail=row.node, address=address)
    return str(row.node)


def _row(c: Connection, token: str) -> Row[*tuple[Any, ...]]:
    n = t.nodes.c
    query = sa.select(t.joins, n.site, n.identity, n.state).join(t.nodes, n.name == _J.node)
    row = c.execute(query.where(_J.hash == authentication.digest(token), _J.expires_at > utcnow())).first()
    if row is None:
        raise _void()
    return row


def _void() -> Refused:
    hint = "an admin gets a new one with `slicectl node add`"
    return Refused(Code.DENIED, "this token is not valid: it was used, or has expired", hint=hint, field="token")

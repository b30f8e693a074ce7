"""New certificates for nodes, before theirs expire, for the same keys: only the owner of a key gains from one.

A node asks without a token: its request is signed with the key of its present certificate. The signer answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.certificates import requests
from slicemgr.errors import Code, Refused
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow


@dataclass(frozen=True, slots=True)
class Held:
    """The newest valid certificate of a node. certificate: PEM. due: whether a new one may be issued."""

    node: str
    certificate: str
    due: bool


def held(c: Connection, identity: str, now: datetime) -> Held | None:
    """None: the node was removed, or its certificates have expired. Due is the second half of a certificate's life."""
    k, n = t.certificates.c, t.nodes.c
    query = sa.select(n.name, k.certificate, k.issued_at, k.expires_at).join(t.nodes, n.identity == k.identity)
    valid = sa.and_(k.identity == identity, k.revoked_at.is_(None), k.expires_at > now)
    row = c.execute(query.where(valid).order_by(k.expires_at.desc()).limit(1)).first()
    if row is None:
        return None
    return Held(row.name, row.certificate, now - row.issued_at > row.expires_at - now)


def renew(store: Store, identity: str, request: object, address: str) -> str:
    """The newest certificate of the node, PEM; "": a new one is requested, ask again. address: of the client.

    Refused(DENIED): the node has no valid certificate, or the request is not signed with its key.
    """
    key, now = requests.public_key(request), utcnow()
    with store.write() as c:
        found = held(c, identity, now)
        if found is None or requests.load(found.certificate).public_key() != key:
            hint = "if it has expired, an admin removes the node and adds it again"
            raise Refused(Code.DENIED, "no valid certificate has this identity and key", hint=hint)
        if not found.due:
            return found.certificate
        r = t.renewals
        if c.scalar(sa.select(r.c.identity).where(r.c.identity == identity)) is None:
            c.execute(r.insert().values(identity=identity, request=request, created_at=now))
            operations.note(c, ADMIN, "node renewal request", now, detail=found.node, address=address)
    return ""

"""The process that holds the key of the testbed's authority and answers certificate requests.

It issues certificates to identities of nodes alone, for 90 days, and ignores what a request says about its sender.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority, Issued
from slicemgr.errors import Failed, Refused, invalid
from slicemgr.model import NodeState
from slicemgr.service.nodes import operations, renewal
from slicemgr.store import Store, StoreError
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_PAUSE = 2.0  # seconds after a failure of the database
_INTERVAL = 1.0  # seconds between two looks at the requests; a host that joins waits for it


def prepare(store: Store, folder: Path) -> Authority:
    """The authority in `folder`, which is made if the testbed has none; its certificate is in the database.

    Failed if the database names another one: certificates of both would be in use.
    """
    with store.read() as c:
        known = set(c.scalars(sa.select(t.authorities.c.fingerprint)))
    found = Authority.load(folder) if known or folder.exists() else Authority.create(folder, utcnow())
    if known - {found.fingerprint}:
        hint = "restore its folder from the backup of the key"
        raise Failed(f"the authority in {folder} is not the one in the database", hint=hint)
    if not known:
        with store.write() as c:
            row = {"fingerprint": found.fingerprint, "certificate": found.certificate, "created_at": utcnow()}
            c.execute(t.authorities.insert().values(row))
    return found


def run(store: Store, authority: Authority, stop: threading.Event) -> None:
    """Answer requests until `stop` is set, and again after each failure of the database."""
    while not stop.is_set():
        try:
            sign(store, authority)
            renew(store, authority)
        except StoreError as error:
            log.warning("the signer tries again: %s", error)
            stop.wait(_PAUSE)
        else:
            stop.wait(_INTERVAL)


def sign(store: Store, authority: Authority) -> int:
    """Issue a certificate for each waiting request; their number."""
    j, n = t.joins.c, t.nodes.c
    waiting = sa.select(j.node, j.request, n.identity).join(t.nodes, n.name == j.node)
    waiting = waiting.where(j.request != "", j.serial == "", j.expires_at > utcnow(), n.state == NodeState.ADDED)
    with store.read() as c:
        if not c.execute(waiting.limit(1)).all():
            return 0
    with store.write() as c:
        rows = c.execute(waiting).all()
        return sum(_issue(c, authority, row.node, row.identity, row.request) for row in rows)


def renew(store: Store, authority: Authority) -> int:
    """Issue a certificate for each request of a node whose present one ends soon; their number."""
    with store.read() as c:
        if not c.execute(sa.select(t.renewals.c.identity).limit(1)).all():
            return 0
    with store.write() as c:
        rows = c.execute(sa.select(t.renewals)).all()
        c.execute(t.renewals.delete())
        return sum(_renew(c, authority, row.identity, row.request) for row in rows)


def _renew(c: Connection, authority: Authority, identity: str, request: str) -> bool:
    """For the key of a certificate that this authority issued, whatever the rows contain."""
    now = utcnow()
    found = renewal.held(c, identity, now)
    try:
        if found is None or not found.due:
            raise invalid("request", "is not due")
        requests.check_renewal(request, found.certificate, authority.certificate, identity)
    except Refused as error:
        log.error("the renewal of %s is refused: %s", identity, error)
        return False
    _record(c, identity, authority.node(identity, requests.public_key(request), now), now)
    operations.note(c, ADMIN, "node renewal", now, detail=found.node)
    log.info("renewed the certificate of node %s", found.node)
    return True


def _issue(c: Connection, authority: Authority, node: str, identity: str, request: str) -> bool:
    now, n = utcnow(), t.nodes.c
    try:
        key = requests.public_key(request)
    except Refused as error:
        log.error("the request of node %s is refused: %s", node, error)
        return False
    made = authority.node(identity, key, now)
    _record(c, identity, made, now)
    c.execute(t.joins.update().where(t.joins.c.node == node).values(serial=made.serial))
    c.execute(t.nodes.update().where(n.name == node).values(state=NodeState.JOINED))
    operations.note(c, ADMIN, "node join", now, detail=node)
    log.info("issued certificate %s to node %s", made.serial, node)
    return True


def _record(c: Connection, identity: str, made: Issued, now: datetime) -> None:
    row = {"serial": made.serial, "identity": identity, "certificate": made.certificate, "issued_at": now}
    c.execute(t.certificates.insert().values(**row, expires_at=made.expires_at))

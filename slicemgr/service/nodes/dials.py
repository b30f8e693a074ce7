"""Ask nodes to open connections to the service, and judge the tokens with which they do."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from slicemgr.certificates import dial_tokens
from slicemgr.certificates.dial_tokens import Token
from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import Dial
from slicemgr.service.nodes import membership
from slicemgr.store import Store, dials
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


def reachable(store: Store, node: str) -> str:
    """The identity of a node that can be asked. Refused(UNAVAILABLE): it does not report."""
    n, l = t.nodes.c, t.links.c
    query = sa.select(n.identity, n.silent_since).join(t.links, l.identity == n.identity)
    with store.read() as c:
        row = c.execute(query.where(n.name == node)).first()
    if row is None or row.silent_since is not None:
        raise silent(node)
    return str(row.identity)


def ask(store: Store, config: Config, node: str, dial: Dial) -> None:
    """Have a node open a connection."""
    with store.write() as c:
        dials.ask(c, node, dial, utcnow())
    wake(config.wake_socket)


def silent(node: str) -> Refused:
    hint = "show its last report with `slicectl node show`"
    return Refused(Code.UNAVAILABLE, f"node {node} does not answer", hint=hint)


def judge(store: Store, text: str, now: datetime) -> Token:
    """The token, if a node signed it with the key of a valid certificate. Refused(DENIED) otherwise.

    Whether the service waits for its secret is for the caller to check.
    """
    token = dial_tokens.parse(text)
    with store.read() as c:
        valid = membership.certificates(c, token.identity, now)
    if not any(dial_tokens.is_signed(token, one) for one in valid):
        raise dial_tokens.void()
    return token

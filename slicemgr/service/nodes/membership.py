"""Add, drain, rename and remove nodes. A host joins with the token that `add` returns, once and within an hour."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import NodeState
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.nodes import operations
from slicemgr.store import Store, incarnation, operation_parts
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

VALID = timedelta(hours=1)
_SILENT = timedelta(minutes=5)  # since when an agent that uses the database itself has stopped
_REPORTS = ("audits", "host_reports", "unclaimed", "samples", "node_samples")  # about a node, deleted with it
_LONGEST = 40  # characters
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_N = t.nodes.c


@dataclass(frozen=True, slots=True)
class Added:
    """token: the secret, of which only the hash is stored. authority: the fingerprint of the testbed's authority."""

    node: str
    token: str
    authority: str
    expires_at: datetime


def label(value: object, field: str) -> str:
    """The name of a node or a site, such as `tuebingen-2`. Refused(INVALID)."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST or not _LABEL.fullmatch(value):
        hint = f"lower-case letters, digits and inner hyphens, at most {_LONGEST}"
        raise invalid(field, f"{str(value)[:80]!r} is not a valid name", hint)
    return value


def add(store: Store, raw: Mapping[str, Any], by: Principal) -> Added:
    """A row for a node that shall join, and its token; an earlier token of the node becomes invalid.

    raw: name, site. Refused(CONFLICT): the host has joined, or the testbed has no certificate authority.
    """
    access.change_nodes(by, "add nodes")
    for unknown in sorted(set(raw) - {"name", "site"}):
        raise invalid(unknown[:64], "unknown field", "the fields are name, site")
    name, site = label(raw.get("name"), "name"), label(raw.get("site"), "site") if raw.get("site") else ""
    now, token = utcnow(), _token()
    with store.write() as c:
        incarnation.refuse_during_hold(c, "add nodes")
        found = authority(c)
        row = c.execute(sa.select(_N.state).where(_N.name == name)).first()
        if row is None:
            values = {"name": name, "site": site, "identity": new_identity(), "state": NodeState.ADDED}
            c.execute(t.nodes.insert().values(**values, address="", facts={}))
        elif row.state == NodeState.ADDED:
            c.execute(t.nodes.update().where(_N.name == name).values(site=site))
            c.execute(t.joins.delete().where(t.joins.c.node == name))
        else:
            hint = "choose another name, or remove the node first with `slicectl node remove`"
            raise Refused(Code.CONFLICT, f"there is already a node {name!r}", hint=hint, field="name")
        made = Added(name, token, found, now + VALID)
        join = {"node": name, "hash": authentication.digest(token), "user": by.user, "created_at": now}
        c.execute(t.joins.insert().values(**join, expires_at=made.expires_at))
        operations.note(c, by.user, "node add", now, detail=_detail(name, site), address=by.address)
    return made


def _token() -> str:
    """A secret that a command line does not take for an option."""
    while (made := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return made


def new_identity() -> str:
    """A name for certificates that no node had before."""
    return f"node-{names.new_tag()}{names.new_tag()}"


def has_authority(c: Connection) -> bool:
    """Whether the testbed has a certificate authority, which a host needs to join."""
    return c.scalar(sa.select(sa.func.count()).select_from(t.authorities)) != 0


def authority(c: Connection) -> str:
    """The fingerprint of the testbed's authority. Refused(CONFLICT) if there is none."""
    a = t.authorities.c
    found = c.scalar(sa.select(a.fingerprint).order_by(a.created_at.desc(), a.fingerprint).limit(1))
    if found is None:
        hint = "start `slicemgr signer` on the machine of the service; it creates one"
        raise Refused(Code.CONFLICT, "the testbed has no certificate authority", hint=hint)
    return str(found)


def drain(store: Store, name: str, by: Principal, *, drained: bool = True) -> None:
    """Give a node no new slivers, or give it some again. Its slivers are not changed."""
    access.change_nodes(by, "drain nodes")
    with store.write() as c:
        row = find(c, name)
        if row.drained == drained:
            return
        c.execute(t.nodes.update().where(_N.name == name).values(drained=drained))
        action = "node drain" if drained else "node undrain"
        operations.note(c, by.user, action, utcnow(), detail=name, address=by.address)


def resync(store: Store, config: Config, name: str, by: Principal) -> None:
    """Have the hub send a node all its rows again. Refused(CONFLICT) for a node without a database of its own."""
    access.change_nodes(by, "send nodes their rows")
    now, l = utcnow(), t.links.c
    with store.write() as c:
        row = find(c, name)
        again = t.links.update().where(l.identity == row.identity).values(resync_at=now)
        if not c.execute(again).rowcount:
            hint = "only a host that joined with a command of `slicectl node add`, and has reported, has one"
            raise Refused(Code.CONFLICT, f"node {name!r} has no database of its own", hint=hint)
        operations.note(c, by.user, "node resync", now, detail=name, address=by.address)
    wake(config.wake_socket)


def remove(store: Store, name: str, by: Principal) -> None:
    """Delete a node without slivers, and revoke its certificates. Refused(CONFLICT) while it is in use."""
    access.change_nodes(by, "remove nodes")
    now = utcnow()
    with store.write() as c:
        incarnation.refuse_during_hold(c, "remove nodes")
        row = find(c, name)
        _check_unused(c, row, now)
        if row.identity is not None:
            revoke(c, row.identity, now)
            c.execute(t.links.delete().where(t.links.c.identity == row.identity))
        c.execute(t.slivers.delete().where(t.slivers.c.node == name))  # spares, which end with their host
        for table in _REPORTS:
            c.execute(t.metadata.tables[table].delete().where(t.metadata.tables[table].c.node == name))
        c.execute(t.nodes.delete().where(_N.name == name))
        operations.note(c, by.user, "node remove", now, detail=_detail(name, row.site), address=by.address)


def refuse_own(store: Store, node: str) -> None:
    """Refused(CONFLICT) if a host may not join another testbed: it has slivers, or is the centre of nodes itself.

    store: its own. node: its name there.
    """
    with store.read() as c:
        nodes = c.scalar(sa.select(sa.func.count()).where(_N.identity.is_not(None)))
        count = c.scalar(sa.select(sa.func.count()).where(t.slivers.c.node == node))
    if nodes:
        raise Refused(Code.CONFLICT, f"this host is the centre of {nodes} nodes", hint="remove them first")
    if count:
        hint = "delete its slices first, and set spares.keep to []: the testbed that it joins would not know them"
        raise Refused(Code.CONFLICT, f"this host has {_slivers(count)} of its own", hint=hint)


def revoke(c: Connection, identity: str, now: datetime) -> None:
    """No certificate of a node is valid any more."""
    k = t.certificates.c
    c.execute(t.certificates.update().where(k.identity == identity, k.revoked_at.is_(None)).values(revoked_at=now))


def certificates(c: Connection, identity: str, now: datetime) -> list[str]:
    """The valid certificates (PEM) of a node that is a member."""
    k, n = t.certificates.c, t.nodes.c
    query = sa.select(k.certificate).join(t.nodes, n.identity == k.identity).where(n.state != NodeState.ADDED)
    return list(c.scalars(query.where(k.identity == identity, k.revoked_at.is_(None), k.expires_at > now)))


def _slivers(count: int) -> str:
    return "a sliver" if count == 1 else f"{count} slivers"


def _check_unused(c: Connection, row: Row[*tuple[Any, ...]], now: datetime) -> None:
    s = t.slivers.c
    count = c.scalar(sa.select(sa.func.count()).where(s.node == row.name, s.slice.is_not(None)))
    if count:
        hint = "delete its slices first; `slicectl node drain` keeps new ones away"
        raise Refused(Code.CONFLICT, f"node {row.name} has {_slivers(count)}", hint=hint)
    reports = row.state == NodeState.ACTIVE and row.identity is not None and row.silent_since is None
    if reports and c.scalar(sa.select(sa.exists().where(s.node == row.name))):
        hint = f"`slicectl node drain {row.name}` deletes them"
        raise Refused(Code.CONFLICT, f"node {row.name} has spare slivers", hint=hint)
    if row.state == NodeState.ACTIVE and operation_parts.unended(c, row.name):
        raise Refused(Code.CONFLICT, f"node {row.name} has operations that have not ended", hint="`slicectl op list`")
    if row.identity is None and row.agent_seen_at is not None and now - row.agent_seen_at < _SILENT:
        hint = f"stop `slicemgr agent` there, and wait {int(_SILENT.total_seconds() // 60)} minutes"
        raise Refused(Code.CONFLICT, f"the agent of node {row.name} is running", hint=hint)


def rename(store: Store, name: str, new: object, by: Principal) -> str:
    """Give a node that joined by a token another name; the new name. Its identity and its certificates stay."""
    access.change_nodes(by, "rename nodes")
    wanted = label(new, "name")
    try:
        with store.write() as c:
            incarnation.refuse_during_hold(c, "rename nodes")
            row = find(c, name)
            if row.identity is None:
                hint = "its name is the setting node.name of its host"
                raise Refused(Code.CONFLICT, f"node {name} cannot be renamed here", hint=hint)
            if wanted != name:
                _move_rows(c, name, wanted)
                operations.note(c, by.user, "node rename", utcnow(), detail=f"{name} to {wanted}", address=by.address)
    except exc.IntegrityError as error:
        raise Refused(
            Code.CONFLICT, f"there is already a node {wanted!r}", hint="choose another name", field="name"
        ) from error
    return wanted


def _move_rows(c: Connection, name: str, wanted: str) -> None:
    """Rows refer to a node by its name: they get the new one in between the new row and the deletion of the old one."""
    row = dict(c.execute(sa.select(t.nodes).where(_N.name == name)).mappings().one())
    c.execute(t.nodes.update().where(_N.name == name).values(identity=None))
    c.execute(t.nodes.insert().values({**row, "name": wanted}))
    for table in t.metadata.sorted_tables:
        if "node" in table.c:
            c.execute(table.update().where(table.c.node == name).values(node=wanted))
    c.execute(t.nodes.delete().where(_N.name == name))


def find(c: Connection, name: str) -> Row[*tuple[Any, ...]]:
    """The row of a node. Refused(NOT_FOUND)."""
    row = c.execute(sa.select(t.nodes).where(_N.name == name)).first()
    if row is None:
        raise access.missing("node", name)
    return row


def _detail(name: str, site: str) -> str:
    return f"{name}, site {site}" if site else name

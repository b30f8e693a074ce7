"""The SSH keys of user accounts. The slices of a user accept them beside the keys of the request."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.service.slices import authorized_keys, request_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_ID_LENGTH = 16


def of(c: Connection, user: str) -> list[str]:
    """The lines, in the format of authorized_keys, in the order in which they were added."""
    k = t.ssh_keys.c
    return list(c.scalars(sa.select(k.line).where(k.user == user).order_by(k.created_at, k.id)))


def add(store: Store, text: object, by: Principal, config: Config | None = None) -> list[str]:
    """The ids of the keys in `text`, the content of a .pub file. Refused(CONFLICT) for a key that is already there.

    The keys are added to the user's slices; config: wakes the agent for that.
    """
    access.changes(by, "add keys")
    if not isinstance(text, str):
        raise invalid("key", "must be text", "the content of a .pub file")
    try:
        lines = request_keys.parse([text])
    except Refused as error:
        error.field = "key"
        raise
    now, k = utcnow(), t.ssh_keys.c
    ids = [key_id(line) for line in lines]
    with store.write() as c:
        if c.scalar(sa.select(sa.exists().where(k.user == by.user, k.id.in_(ids)))):
            raise Refused(Code.CONFLICT, "your account already has this key", hint="`slicectl key list`", field="key")
        count = c.scalar(sa.select(sa.func.count()).where(k.user == by.user)) or 0
        if count + len(lines) > request_keys.MOST_KEYS:
            raise Refused(
                Code.CONFLICT,
                f"{count + len(lines)} keys exceed the limit",
                hint=f"an account can have at most {request_keys.MOST_KEYS}",
            )
        rows = [{"user": by.user, "id": id_, "line": line} for id_, line in zip(ids, lines, strict=True)]
        c.execute(t.ssh_keys.insert(), [{**row, "created_at": now} for row in rows])
        authorized_keys.refresh(c, by.user, by, f"{', '.join(ids)} of {by.user} added")
        for id_, line in zip(ids, lines, strict=True):
            detail = " ".join((id_, line.split()[0], *line.split()[2:]))
            operations.note(c, by.user, "key add", now, detail=detail, address=by.address)
    if config is not None:
        wake(config.wake_socket)
    return ids


def remove(store: Store, id: str, user: str, by: Principal, config: Config | None = None) -> None:
    """Remove a key of `user`, also from the user's slices.

    Refused(NOT_FOUND) if there is none or it is another user's.
    """
    access.remove_credential(by, user, "key", id)
    k = t.ssh_keys.c
    with store.write() as c:
        line = c.scalar(sa.select(k.line).where(k.user == user, k.id == id))
        if line is None:
            raise access.missing("key", id)
        c.execute(t.ssh_keys.delete().where(k.user == user, k.id == id))
        authorized_keys.removed(c, user, [line], by, f"{id} of {user} removed")
        operations.note(c, by.user, "key remove", utcnow(), detail=f"{id} of {user}", address=by.address)
    if config is not None:
        wake(config.wake_socket)


def key_id(line: str) -> str:
    """The first hexadecimal digits of the key's SHA256, because the base64 fingerprint does not fit into a path."""
    return hashlib.sha256(line.split()[1].encode()).hexdigest()[:_ID_LENGTH]

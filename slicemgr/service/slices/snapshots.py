"""Create, delete and restore snapshots of slices, and clone slices. Each function is one transaction.

A row exists for each desired snapshot. The epoch of a sliver identifies the desired root, its origin the content of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired, OnLoss, SliceSpec, Where
from slicemgr.policy import access, quota
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.service.slices import slices, snapshot_users, specs
from slicemgr.service.slices.slices import Created, Draft
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

CLONE_FIELDS = ("name", "lease", "disk", "ssh_keys")

_Row = Row[*tuple[Any, ...]]


class SliceReference(NamedTuple):
    """A slice by its name, for a user. project None: in any project of the user."""

    slice: str
    by: Principal
    project: str | None = None


def create(store: Store, config: Config, at: SliceReference, name: Any) -> str:
    """Create a snapshot of every sliver; the operation's id.

    Refused(CONFLICT): the name is taken, the slice has the maximum number of snapshots, or it is still being created.
    """
    wanted = specs.slice_name(name)
    try:
        with store.write() as c:
            found = _changing(c, at, "snapshot")
            slivers = _slivers(c, found)
            snapshot_users.check_idle(c, found.id, at.slice)
            _check_count(c, config, found)
            id_, now = names.new_snapshot(), utcnow()
            row = {"id": id_, "slice": found.id, "name": wanted, "user": at.by.user, "created_at": now}
            c.execute(t.snapshots.insert().values(**row))
            c.execute(t.sliver_snapshots.insert(), [{"snapshot": id_, "sliver": one.id} for one in slivers])
            operation = _ask(c, "snapshot", found, slivers, {"snapshot": id_, "name": wanted}, at.by)
    except exc.IntegrityError as error:
        message = f"slice {at.slice} already has a snapshot {wanted!r}"
        raise Refused(Code.CONFLICT, message, hint="choose another name", field="name") from error
    wake(config.wake_socket)
    return operation


def delete(store: Store, config: Config, at: SliceReference, name: str) -> str:
    """Delete a snapshot; the operation's id. Refused(CONFLICT) while it is needed."""
    with store.write() as c:
        found = _changing(c, at, "delete snapshots of")
        row = find(c, found, name)
        snapshot_users.check_idle(c, found.id, at.slice, row.id)
        snapshot_users.check_not_cloned(c, found.id, at.slice, row.id)
        c.execute(t.snapshots.delete().where(t.snapshots.c.id == row.id))
        params = {"snapshot": row.id, "name": name}
        operation = _ask(c, "snapshot-delete", found, _slivers(c, found), params, at.by)
    wake(config.wake_socket)
    return operation


def restore(store: Store, config: Config, at: SliceReference, name: str) -> str:
    """Restore all slivers to the snapshot; the operation's id. Their current content is lost."""
    with store.write() as c:
        found = _changing(c, at, "restore")
        row, slivers = find(c, found, name), _slivers(c, found)
        snapshot_users.check_idle(c, found.id, at.slice)
        _check_made(c, row)
        s = t.slivers.c
        values = {"origin": s.id.concat(f"/{row.id}"), "epoch": s.epoch + 1, "updated_at": utcnow()}
        c.execute(t.slivers.update().where(s.slice == found.id).values(**values))
        operation = _ask(c, "restore", found, slivers, {"snapshot": row.id, "name": name}, at.by)
    wake(config.wake_socket)
    return operation


def clone(store: Store, config: Config, at: SliceReference, name: str, raw: Mapping[str, Any]) -> str:
    """Create another slice in the same project from the snapshot; the operation's id.

    raw: name; lease, disk (of each sliver) and ssh_keys, to differ from the original. The disk limit of each sliver
    includes its initial content, as if that were a copy. Raises OverQuota.
    """
    for unknown in sorted(set(raw) - set(CLONE_FIELDS)):
        raise invalid(unknown[:64], "unknown field", f"the fields are {', '.join(CLONE_FIELDS)}")
    wanted = specs.slice_name(raw.get("name"))

    def draft(c: Connection) -> Draft:
        found = _changing(c, at, "clone")
        row = find(c, found, name)
        _check_made(c, row)
        begins = _begins(c, row)
        return Draft(
            {**raw, "name": wanted},
            project=found.project,
            hint=quota.ADMIN_HINT,
            original=_spec(c, found),
            contents=max(one.size for one in begins),
            record=partial(_cloned, begins=begins, found=found, snapshot=row, by=at.by),
        )

    return slices.create(store, config, draft, at.by).operation


def find(c: Connection, found: _Row, name: str) -> _Row:
    """The snapshot of a slice with this name. Refused(NOT_FOUND)."""
    n = t.snapshots.c
    row = c.execute(sa.select(t.snapshots).where(n.slice == found.id, n.name == name)).first()
    if row is None:
        hint = f"list them with `slicectl snapshot list {found.name}`"
        raise Refused(Code.NOT_FOUND, f"slice {found.name} has no snapshot {name[:80]!r}", hint=hint)
    return row


def _changing(c: Connection, at: SliceReference, action: str) -> _Row:
    found = slices.find(c, at.slice, at.by, at.project)
    access.change_slice(at.by, found.project, found.owner, at.slice, action)
    return found


def _slivers(c: Connection, found: _Row) -> list[_Row]:
    """Refused(CONFLICT) unless each of them has a root."""
    s = t.slivers.c
    rows = list(c.execute(sa.select(t.slivers).where(s.slice == found.id).order_by(s.idx)).all())
    if Desired.ABSENT in {one.desired for one in rows} or not rows:
        raise Refused(Code.CONFLICT, f"slice {found.name} is being deleted", hint="create a new slice")
    if not all(one.host_key for one in rows):
        raise Refused(Code.CONFLICT, f"slice {found.name} is still being created", hint=f"`slicectl wait {found.name}`")
    return rows


def _check_count(c: Connection, config: Config, found: _Row) -> None:
    n, most = t.snapshots.c, config.limits.snapshots_per_slice
    if (c.scalar(sa.select(sa.func.count()).where(n.slice == found.id)) or 0) >= most:
        message = f"slice {found.name} already has {most} snapshots, which is the limit"
        raise Refused(Code.CONFLICT, message, hint=f"delete one with `slicectl snapshot delete {found.name} SNAPSHOT`")


def _check_made(c: Connection, row: _Row) -> None:
    n = t.sliver_snapshots.c
    if c.scalar(sa.select(sa.exists().where(n.snapshot == row.id, n.made_at.is_(None)))):
        raise Refused(Code.CONFLICT, f"snapshot {row.name} is still being created", hint="wait until it is ready")


def _spec(c: Connection, found: _Row) -> SliceSpec:
    """The specification of a slice, as it is now."""
    head = c.execute(sa.select(t.slices).where(t.slices.c.id == found.id)).one()
    slivers = _slivers(c, found)
    each = tuple(one.node for one in slivers)
    where = Where(nodes=tuple(dict.fromkeys(each)), each=each)
    return replace(specs.of_rows(head, slivers), where=where, on_loss=OnLoss(head.on_loss))


def _begins(c: Connection, snapshot: _Row) -> Sequence[_Row]:
    """The slivers of a snapshot: index, id, and size in bytes."""
    s, n = t.slivers.c, t.sliver_snapshots.c
    query = sa.select(s.idx, s.id, n.size).join(t.slivers, s.id == n.sliver).where(n.snapshot == snapshot.id)
    return c.execute(query).all()


def _cloned(c: Connection, made: Created, begins: Sequence[_Row], found: _Row, snapshot: _Row, by: Principal) -> None:
    """The slivers of the new slice begin as those of the snapshot."""
    s = t.slivers.c
    for one in begins:
        values = {"origin": names.origin(one.id, snapshot.id), "inherited": one.size}
        c.execute(t.slivers.update().where(s.slice == made.slice, s.idx == one.idx).values(**values))
    about = {"slice": found.name, "project": found.project, "address": by.address}
    operations.note(c, by.user, "snapshot clone", utcnow(), detail=f"{snapshot.name} into {made.spec.name}", **about)


_EVENTS = {"snapshot": "snapshot create", "snapshot-delete": "snapshot delete", "restore": "snapshot restore"}


def _ask(c: Connection, kind: str, found: _Row, slivers: list[_Row], params: Mapping[str, str], by: Principal) -> str:
    now = utcnow()
    about = {"slice": found.name, "project": found.project, "address": by.address}
    operations.note(c, by.user, _EVENTS[kind], now, detail=params["name"], **about)
    ids = {one.id: one.node for one in slivers}
    subject = operations.Subject(slice_id=found.id, slice_name=found.name, slivers=ids, project=found.project)
    return operations.add(c, kind, subject, by.user, now, params)

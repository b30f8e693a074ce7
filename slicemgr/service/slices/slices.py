"""Create, list, change and delete slices. Each function is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired, SliceSpec
from slicemgr.policy import access, leases, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import OverQuota, Quota
from slicemgr.service.accounts import ssh_keys
from slicemgr.service.leases import rules as lease_rules
from slicemgr.service.nodes import nodes, operations
from slicemgr.service.projects import projects
from slicemgr.service.slices import (
    request_defaults,
    request_keys,
    request_queue,
    sliver_rows,
    snapshot_users,
    spares,
    specs,
)
from slicemgr.service.slices.placement import Placement, place
from slicemgr.store import Store, allocations, incarnation
from slicemgr.store import tables as t
from slicemgr.store.pending import SLIVER_OPERATIONS
from slicemgr.store.updates import utcnow

# Made once: to make them takes longer than to execute them.
_INSERT = t.slices.insert()
_KEYS = sa.select(t.ssh_keys.c.line).where(t.ssh_keys.c.user == sa.bindparam("owner"))
_MOST_ELSEWHERE = 5  # slices of the same name in a hint, or projects in an error
ACTIONS = ("start", "stop", "restart", "pause", "resume", "delete")


class Created(NamedTuple):
    """The outcome of `create`: the new slice with the operation that creates it, or the id of a waiting request."""

    spec: SliceSpec
    slice: str = ""  # id
    operation: str = ""
    request: str = ""


def _nothing(c: Connection, made: Created) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Draft:
    """A slice to create. The defaults are those of `POST /slices`; a grant and a clone differ in the other values.

    body: the JSON of `POST /slices`, or for a clone what differs from the original. record: writes further rows in the
    transaction of the new slice.
    """

    body: Mapping[str, Any]
    why: str = ""  # the reason to queue a request beyond the quota; "": OverQuota is raised
    project: str = ""  # "": that of the body, otherwise the user's own
    owner: str = ""  # of the slice; "": the user
    allowed: Quota | None = None  # the limits to check; None: the project's quota
    hint: str = quota.REQUEST_HINT  # of OverQuota
    original: SliceSpec | None = None  # of the slice to clone
    contents: int = 0  # bytes that the largest sliver begins with
    record: Callable[[Connection, Created], None] = _nothing


def create(store: Store, config: Config, source: Draft | Callable[[Connection], Draft], by: Principal) -> Created:
    """Create a slice, for the form, REST, a granted request and a clone alike. Refused: nothing was changed.

    source: a draft, or a function that reads it in the transaction of the new slice. The user must be allowed to create
    slices in the project; the function checks the other rights. Without `ssh_keys` the keys of the account are used;
    without a name one is generated; the default image is `limits.image`, otherwise the only ready one. Beyond the quota
    a request is queued if the draft has a reason; otherwise raises OverQuota.
    """
    early = None
    if isinstance(source, Draft):  # validate before taking the write lock
        with store.read() as c:
            early = _specify(c, config, source, by)
    try:
        with store.write() as c:
            draft, spec = early or _specify(c, config, source if isinstance(source, Draft) else source(c), by)
            made = _insert_or_queue(c, config, draft, spec, by)
            if made.operation:
                draft.record(c, made)
    except exc.IntegrityError as error:  # on PostgreSQL only: a concurrent transaction committed first
        raise Refused(Code.CONFLICT, "a concurrent request changed the slice", hint="try again") from error
    if made.operation:
        wake(config.wake_socket)
    return made


def plan(store: Store, config: Config, draft: Draft, by: Principal) -> tuple[SliceSpec, Placement, datetime]:
    """What `create` would do with the same draft now: the placement and the end of the lease. Changes nothing."""
    with store.read() as c:
        draft, spec = _specify(c, config, draft, by)
        placed = place(c, config, spec, draft.allowed, draft.hint, reasons=True)
    return spec, placed, leases.grant(spec.lease, utcnow(), config.lease)


def _specify(c: Connection, config: Config, draft: Draft, by: Principal) -> tuple[Draft, SliceSpec]:
    """The draft with its project, keys, name and image, and its specification with the project's default lease.

    Refused if the user may not create slices in the project. Raises InvalidSpec.
    """
    incarnation.refuse_during_hold(c, "create slices")
    project = draft.project or access.project_for(by, draft.body.get("project"))
    access.make_slice(by, project)
    body = {**draft.body, "project": project}
    if body.get("ssh_keys") is None and (own := ssh_keys.of(c, by.user)):
        body["ssh_keys"] = own
    usual = projects.lease_policy(c, config, project).default
    if draft.original is None:
        body = request_defaults.complete(c, config, body)
        spec = specs.slice_spec(body, config, usual, request_defaults.hints(c, body))
    else:
        spec = specs.changed(replace(draft.original, lease=usual, warm=False), body, config, draft.contents)
    return replace(draft, body=body), spec


def _insert_or_queue(c: Connection, config: Config, draft: Draft, spec: SliceSpec, by: Principal) -> Created:
    try:
        placed = place(c, config, spec, draft.allowed, draft.hint)
    except OverQuota as over:
        if not draft.why:
            raise
        entry = request_queue.Entry(spec.project, spec.name, draft.body, draft.why, over)
        return Created(spec, request=request_queue.add(c, entry, by))
    now = utcnow()
    expires = leases.grant(spec.lease, now, config.lease)
    return _insert(c, spec, placed, draft.owner or by.user, by, now, expires)


def _insert(
    c: Connection, spec: SliceSpec, placed: Placement, owner: str, by: Principal, now: datetime, expires: datetime
) -> Created:
    tag = placed.spare.rpartition("-")[0] or names.new_tag()
    c.execute(
        _INSERT,
        {
            "id": tag,
            "name": spec.name,
            "project": spec.project,
            "owner": owner,
            "type": spec.type,
            "image": placed.image,
            "count": spec.count,
            "ssh_keys": request_keys.union(spec.ssh_keys, c.scalars(_KEYS, {"owner": owner})),
            "named_keys": list(spec.ssh_keys),
            "boot": placed.boot,
            "machine": spec.machine,
            "init": spec.init,
            "user_data": spec.user_data,
            "on_loss": spec.on_loss,
            "warm": bool(placed.spare),
            "created_at": now,
            "expires_at": expires,
        },
    )
    ids = [names.sliver_id(tag, index) for index in range(spec.count)]
    if placed.spare:
        spares.take(c, placed.spare, tag, spec, now)
    else:
        sliver_rows.insert(c, zip(ids, placed.nodes, placed.grants, strict=True), spec.limits, now, tag)
    allocations.take_slice(c, tag)
    nodes.move_cursors(c, placed.cursors)
    where = dict(zip(ids, placed.nodes, strict=True))
    subject = operations.Subject("", tag, spec.name, placed.image, placed.image_name, where, spec.project)
    how = ", by taking a spare" if placed.spare else ""
    detail = f"{spec.count} × {spec.type} of {placed.image_name}{how}" + ("" if owner == by.user else f" for {owner}")
    about = {"slice": spec.name, "project": spec.project}
    operations.note(c, by.user, "create", now, **about, detail=detail, address=by.address)
    return Created(spec, tag, operations.add(c, "create", subject, by.user, now))


def find(c: Connection, name: str, by: Principal, project: str | None = None) -> Row[*tuple[Any, ...]]:
    """The row of the slice called `name` in `project`, or in the projects of the user.

    If several projects have one: that of the default project, so that the slices of other users do not change the
    result. Refused(NOT_FOUND) if the user can see none, Refused(CONFLICT) if only several other projects have one.
    """
    l, where = t.slices.c, access.places(by, project)
    columns = sa.select(l.id, l.name, l.project, l.owner, l.expires_at, l.lease_ended_at).order_by(l.project)
    rows = c.execute(columns.where(l.project.in_(where), l.name == name)).all()
    if not rows:
        raise _gone(c, name, where, by, project)
    if len(rows) > 1:
        for row in rows:
            if row.project == by.default_project:
                return row
        hint = f"give the project, as in {rows[0].project}/{name}: {', '.join(row.project for row in rows)}"
        raise Refused(Code.CONFLICT, f"several projects have a slice {name!r}", hint=hint, field="project")
    return rows[0]


def _gone(c: Connection, name: str, where: Sequence[str], by: Principal, project: str | None) -> Refused:
    """The error for a missing slice, with the reason of its deletion if the user could see the slice.

    It names `project`, otherwise the projects that were searched. An admin, who sees all slices but changes those of
    other projects by their full names only, gets these.
    """
    e, missing = t.events.c, access.missing("slice", name, _places([project] if project else sorted(where)))
    deleted = (e.slice == name, e.action == "delete", e.project.in_(where))
    last = c.execute(sa.select(e.at, e.user, e.detail).where(*deleted).order_by(e.id.desc()).limit(1)).first()
    if last is not None:
        why = f": {last.detail}" if last.detail else ""
        missing.hint = f"a slice with this name was deleted at {last.at:%Y-%m-%dT%H:%M:%SZ} by {last.user}{why}"
    if by.admin:
        l = t.slices.c
        elsewhere = c.scalars(sa.select(l.project).where(l.name == name).order_by(l.project).limit(_MOST_ELSEWHERE))
        if found := [f"{project}/{name}" for project in elsewhere]:
            missing.hint = f"in other projects there is {', '.join(found)}"
    return missing


def _places(projects: Sequence[str]) -> str:
    if len(projects) > _MOST_ELSEWHERE:
        return f"in your {len(projects)} projects"
    shown = ", ".join(repr(one[:80]) for one in projects)
    return f"in {'project' if len(projects) == 1 else 'your projects'} {shown}" if shown else ""


def act(
    store: Store,
    config: Config,
    name: str,
    action: str,
    by: Principal,
    params: Mapping[str, Any] | None = None,
    *,
    project: str | None = None,
) -> str:
    """Start, stop, restart, pause, resume or delete a slice; the operation's id.

    Refused(NOT_FOUND), Refused(CONFLICT) if it is being deleted or not in a state for it.
    """
    with store.write() as c:
        row = find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, action)
        if action == "delete":
            snapshot_users.check_not_cloned(c, row.id, name)
        if action in ("start", "restart", "resume") and row.lease_ended_at is not None:
            hint = f"renew it first with `slicectl renew {name}`"
            raise Refused(Code.CONFLICT, f"the lease of slice {name} has ended", hint=hint)
        operation = change(c, row, action, by.user, utcnow(), params, address=by.address)
    wake(config.wake_socket)
    return operation


def change(
    c: Connection,
    row: Row[*tuple[Any, ...]],
    action: str,
    user: str,
    now: datetime,
    params: Mapping[str, Any] | None = None,
    why: str = "",
    address: str = "",
) -> str:
    """Set the desired state, add the operation and the event; the operation's id. Refused(CONFLICT)."""
    s = t.slivers.c
    slivers = c.execute(sa.select(s.id, s.node, s.desired).where(s.slice == row.id).order_by(s.idx)).all()
    check_possible(row.name, action, {sliver.desired for sliver in slivers})
    values: dict[str, Any] = {"updated_at": now}
    if SLIVER_OPERATIONS[action] is not None:
        values["desired"] = SLIVER_OPERATIONS[action]
    if action == "restart":
        values["generation"] = s.generation + 1
    c.execute(t.slivers.update().where(s.slice == row.id).values(**values))
    operations.note(c, user, action, now, slice=row.name, project=row.project, detail=why, address=address)
    if action == "delete":
        request_queue.withdraw_for(c, row.id, user, now, f"slice {row.name} was deleted")
    ids = {sliver.id: sliver.node for sliver in slivers}
    subject = operations.Subject(slice_id=row.id, slice_name=row.name, slivers=ids, project=row.project)
    return operations.add(c, action, subject, user, now, params)


def check_possible(name: str, action: str, desired: set[str]) -> None:
    """Refused(CONFLICT) if the action does not fit the desired states of the slivers."""
    if Desired.ABSENT in desired:
        raise Refused(Code.CONFLICT, f"slice {name} is being deleted", hint="wait until it has been deleted")
    if action == "pause" and desired != {Desired.RUNNING}:
        raise Refused(Code.CONFLICT, f"slice {name} is not running", hint="only a running slice can be paused")
    if action == "resume" and desired != {Desired.PAUSED}:
        raise Refused(
            Code.CONFLICT, f"slice {name} is not paused", hint=f"start a stopped slice with `slicectl start {name}`"
        )


def renew(
    store: Store, config: Config, name: str, lease: timedelta, by: Principal, *, project: str | None = None
) -> leases.Granted:
    """Extend the lease, as long as requested or as the policy allows. Stopped slivers stay stopped.

    Refused(CONFLICT) before the project's renewal window, which does not bind an admin.
    """
    with store.write() as c:
        row = find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, "renew")
        if c.scalar(sa.select(sa.exists().where(t.slivers.c.slice == row.id, t.slivers.c.desired == Desired.ABSENT))):
            raise Refused(Code.CONFLICT, f"slice {name} is being deleted", hint="create a new slice")
        now, rules = utcnow(), lease_rules.of(c, config, row.project)
        if rules.exempt:
            raise Refused(
                Code.CONFLICT, f"the leases of project {row.project} do not expire", hint="a renewal is not needed"
            )
        if not by.admin:
            leases.check_window(name, now, row.expires_at, rules.lease.window)
        granted = leases.renew(lease, now, rules.lease, row.expires_at)
        fresh = {"lease_ended_at": None, "renewed_at": now, "reminded": None, "lease_notice": ""}
        c.execute(t.slices.update().where(t.slices.c.id == row.id).values(expires_at=granted.until, **fresh))
        detail = f"until {granted.until:%Y-%m-%dT%H:%M:%SZ}" + (f": {granted.why}" if granted.why else "")
        about = {"slice": name, "project": row.project}
        operations.note(c, by.user, "renew", now, **about, detail=detail, address=by.address)
        return granted


def check_action(action: str) -> str:
    if action not in ACTIONS:
        raise invalid("action", f"{action[:40]!r} is unknown", ", ".join(ACTIONS))
    return action

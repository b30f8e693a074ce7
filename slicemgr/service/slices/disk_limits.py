"""Raise the disk limit of a slice, at once within the quota and by a request beyond it."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import Limits
from slicemgr.policy import access, allocate, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import OverQuota, Quota
from slicemgr.service.nodes import nodes
from slicemgr.service.nodes.nodes import given
from slicemgr.service.projects import projects
from slicemgr.service.slices import request_queue, slices
from slicemgr.store import Store, allocations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


class Resized(NamedTuple):
    """The outcome of `resize`: the id of the operation, or that of a waiting request."""

    operation: str = ""
    request: str = ""


def resize(
    store: Store, config: Config, name: str, disk: int, by: Principal, *, project: str | None = None, why: str = ""
) -> Resized:
    """Raise the disk limit of each sliver to `disk` bytes.

    why: the reason to queue a request beyond the quota; "": OverQuota is raised. Refused(CONFLICT) unless the limit is
    larger than the current one, because file systems do not shrink.
    """
    with store.write() as c:
        row = slices.find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, "resize")
        try:
            made = Resized(raise_limit(c, config, row, disk, by))
        except OverQuota as over:
            if not why:
                raise
            entry = request_queue.Entry(row.project, row.name, {"disk": disk}, why, over, row.id)
            made = Resized(request=request_queue.add(c, entry, by))
    if made.operation:
        wake(config.wake_socket)
    return made


def raise_limit(
    c: Connection,
    config: Config,
    row: Row[*tuple[Any, ...]],
    disk: int,
    by: Principal,
    allowed: Quota | None = None,
) -> str:
    """Raise the limits of the slivers of the slice in `row`; the operation's id. Raises as `resize`.

    allowed: the limits to check, such as the project's ceiling, by default its quota.
    """
    s = t.slivers.c
    own = c.execute(sa.select(s.node, s.disk, s.desired).where(s.slice == row.id)).all()
    slices.check_possible(row.name, "resize", {one.desired for one in own})
    most = max(one.disk for one in own)
    if disk <= most:
        hint = f"use more than {allocate.size_text(most)}; a disk cannot shrink"
        raise Refused(Code.CONFLICT, f"the disk limit of slice {row.name} is already as large", hint=hint, field="disk")
    more = quota.Amounts(disk=sum(disk - one.disk for one in own))
    limits, limit, hint = projects.limits(c, row.project), "project quota", quota.REQUEST_HINT
    if allowed is not None:
        limits, limit, hint = allowed, "project ceiling", quota.CEILING_HINT
    quota.check(limits, projects.used(c, row.project), more, hint=hint, limit=limit)
    added = Limits(memory=0, disk=disk - most, pids=0, cpu=0)
    for name, count in Counter(one.node for one in own).items():
        capacity = nodes.find(c, config, name).candidate.capacity
        allocate.check_capacity(capacity, config.limits, given(c, name), count, added)
    allocations.free(c, s.slice == row.id)
    c.execute(t.slivers.update().where(s.slice == row.id).values(disk=disk))
    allocations.take(c, s.slice == row.id)
    detail = f"disk {allocate.size_text(disk)}"
    return slices.change(c, row, "resize", by.user, utcnow(), why=detail, address=by.address)

"""Change limits of the slivers of a slice while they run, at once within the quota and by a request beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired, Limits, SliverType
from slicemgr.policy import access, allocate, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import OverQuota, Quota
from slicemgr.service.nodes import nodes
from slicemgr.service.nodes.nodes import given
from slicemgr.service.projects import projects
from slicemgr.service.slices import request_queue, slices, specs
from slicemgr.store import Store, allocations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

FIELDS = {
    "disk": specs.disk,
    "memory": specs.memory,
    "memory_guarantee": specs.memory_guarantee,
    "memory_weight": specs.memory_weight,
}
_NOTHING = Limits(memory=0, disk=0, pids=0, cpu=0)
Changes = Mapping[str, int]  # new values by the names of FIELDS


class Resized(NamedTuple):
    """The outcome of `resize`: the id of the operation, or that of a waiting request."""

    operation: str = ""
    request: str = ""


def read(raw: Mapping[str, Any]) -> dict[str, int]:
    """The changes that `raw` asks for, valid each for itself. Refused(INVALID) if there are none."""
    found = {name: parse(raw[name]) for name, parse in FIELDS.items() if raw.get(name) is not None}
    if not found:
        raise invalid("disk", "is missing", f"give at least one of {', '.join(FIELDS)}, such as disk 8G")
    return found


def text(changes: Mapping[str, Any]) -> str:
    """The changes as words, such as `disk 8.0 GiB, memory weight 200`."""
    return ", ".join(f"{name.replace('_', ' ')} {_in_unit(name, changes[name])}" for name in FIELDS if name in changes)


def _in_unit(name: str, value: int) -> str:
    return allocate.size_text(value) if name in quota.SIZES else str(value)


def resize(
    store: Store,
    config: Config,
    name: str,
    changes: Changes,
    by: Principal,
    *,
    project: str | None = None,
    why: str = "",
) -> Resized:
    """Give each sliver of the slice the limits in `changes`.

    why: the reason to queue a request beyond the quota; "": OverQuota is raised. Refused(CONFLICT) for a disk limit
    that is not larger than the current one, because file systems do not shrink, and for more memory than a running
    virtual machine can get: its `memory_max`, otherwise that with which it started. Refused(INVALID) if the memory
    would be less than its guarantee.
    """
    with store.write() as c:
        row = slices.find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, "resize")
        try:
            made = Resized(change(c, config, row, changes, by))
        except OverQuota as over:
            if not why:
                raise
            entry = request_queue.Entry(row.project, row.name, dict(changes), why, over, row.id)
            made = Resized(request=request_queue.add(c, entry, by))
    if made.operation:
        wake(config.wake_socket)
    return made


def change(
    c: Connection,
    config: Config,
    row: Row[*tuple[Any, ...]],
    changes: Changes,
    by: Principal,
    allowed: Quota | None = None,
) -> str:
    """Change the limits of the slivers of the slice in `row`; the operation's id. Raises as `resize`.

    allowed: the limits to check, such as the project's ceiling, by default its quota.
    """
    s = t.slivers.c
    more_columns = (s.memory_started, s.memory_max, t.slices.c.type)
    columns = (s.node, s.desired, *more_columns, *(s[name] for name in FIELDS))
    own = c.execute(sa.select(*columns).join(t.slices).where(s.slice == row.id)).all()
    slices.check_possible(row.name, "resize", {one.desired for one in own})
    _check(row.name, own, changes)
    more = {name: sum(changes[name] - getattr(one, name) for one in own) for name in quota.SIZES if name in changes}
    limits, limit, hint = projects.limits(c, row.project), "project quota", quota.REQUEST_HINT
    if allowed is not None:
        limits, limit, hint = allowed, "project ceiling", quota.CEILING_HINT
    wanted = quota.Amounts(**{name: max(0, value) for name, value in more.items()})
    quota.check(limits, projects.used(c, row.project), wanted, hint=hint, limit=limit)
    added = {name: max(0, changes[name] - max(getattr(one, name) for one in own)) for name in more}
    for name, count in Counter(one.node for one in own).items():
        capacity = nodes.find(c, config, name).candidate.capacity
        allocate.check_capacity(capacity, config.limits, given(c, name), count, replace(_NOTHING, **added))
    allocations.free(c, s.slice == row.id)
    c.execute(t.slivers.update().where(s.slice == row.id).values(**changes))
    allocations.take(c, s.slice == row.id)
    return slices.change(c, row, "resize", by.user, utcnow(), why=text(changes), address=by.address)


def _check(name: str, own: Sequence[Row[*tuple[Any, ...]]], changes: Changes) -> None:
    """Refused if slivers cannot get these limits. own: their rows."""
    most = max(one.disk for one in own)
    if "disk" in changes and changes["disk"] <= most:
        hint = f"use more than {allocate.size_text(most)}; a disk cannot shrink"
        raise Refused(Code.CONFLICT, f"the disk limit of slice {name} is already as large", hint=hint, field="disk")
    if any(changes.get("memory_guarantee", one.memory_guarantee) > changes.get("memory", one.memory) for one in own):
        field = "memory_guarantee" if "memory_guarantee" in changes else "memory"
        message = "exceeds the memory limit" if field == "memory_guarantee" else "is less than the memory guarantee"
        raise invalid(field, message, "the guarantee is a part of the memory limit")
    other = [one for one in own if changes.get("memory", one.memory) != one.memory]
    running = [one for one in other if one.type == SliverType.KVM and one.desired != Desired.STOPPED]
    if running and changes["memory"] > min(map(_most, running)):
        raise _no_more(name, min(running, key=_most))


def _most(one: Row[*tuple[Any, ...]]) -> int:
    """Up to how much memory a running virtual machine can get; 0: not known."""
    started = int(one.memory_started)
    return max(started, one.memory_max or 0) if started else 0


def _no_more(name: str, one: Row[*tuple[Any, ...]]) -> Refused:
    """The error for more memory than a running virtual machine can get. one: its row."""
    hint = f"stop the slice first: `slicectl stop {name}`"
    if one.memory_max is None:
        hint += "; the virtual machines of a slice that is created with --memory-max get more while they run"
    size = allocate.size_text(most := _most(one))
    if most > one.memory_started:
        reason = f"its memory_max is {size}"
    else:
        reason = f"it started with {size}" if most else "it is not known with how much it started"
    message = f"a running virtual machine cannot get that much memory: {reason}"
    return Refused(Code.CONFLICT, message, hint=hint, field="memory")

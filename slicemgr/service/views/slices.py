"""Slices as the JSON of the REST API. The number of queries does not grow with the number of slices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import DEFAULT_PROJECT, Desired, Phase, SliceSpec, SliverType
from slicemgr.policy import access
from slicemgr.service.slices.placement import Placement
from slicemgr.service.slices.specs import LIMITS
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, Where, fingerprint, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t

_SETTLED = {
    Desired.RUNNING: Phase.RUNNING,
    Desired.STOPPED: Phase.STOPPED,
    Desired.PAUSED: Phase.PAUSED,
}
_ON_THE_WAY = {
    (Desired.RUNNING, Phase.PENDING): "creating",
    (Desired.RUNNING, Phase.STOPPED): "starting",
    (Desired.RUNNING, Phase.PAUSED): "resuming",
    (Desired.PAUSED, Phase.RUNNING): "pausing",
}
UNKNOWN = "unknown"  # of slivers on a node that is lost
_USAGE = ("usage_working", "usage_charged", "usage_disk", "guest_memory", "usage_at")
# What is shown of a sliver: a page has thousands, and each further column takes time.
_COLUMNS = (
    *("slice", "idx", "id", "node", "desired", "phase", "address", "port_first", "port_count"),
    *("acceleration", "booted", "keys_missing", "oom_kills", "oom_at", "error", "host_key"),
    *(*LIMITS, *_USAGE),
)
_limits_of, _usage_of = attrgetter(*LIMITS), attrgetter(*_USAGE)
SETTLED = ("running", "stopped", "paused", "failed", UNKNOWN)  # states that do not change by themselves


def sliver_state(desired: Desired, phase: Phase, *, lost: bool = False) -> str:
    """The state of a sliver, or the change in progress, as one word. lost: its node is."""
    if desired is Desired.ABSENT:
        return "deleting"
    if lost:
        return UNKNOWN
    if phase is Phase.FAILED:
        return "failed"
    if phase is _SETTLED[desired]:
        return phase.value
    return _ON_THE_WAY.get((desired, phase), "stopping" if desired is Desired.STOPPED else "starting")


@cache
def _shown_state(desired: str, phase: str, lost: bool) -> str:
    return sliver_state(Desired(desired), Phase(phase), lost=lost)


def slice_state(states: Collection[str]) -> str:
    """The state of a slice: that of all slivers if they agree, else the change in progress, else `partial`."""
    different = set(states)
    if len(different) == 1:
        return different.pop()
    moving = different.difference(SETTLED)
    return sorted(moving)[0] if moving else "partial"


def is_there(c: Connection, project: str | None, name: str | None) -> bool:
    """Whether a project has a slice of this name: that of an operation or request may have been deleted."""
    l = t.slices.c
    return bool(c.scalar(sa.select(sa.exists().where(l.project == project, l.name == name))))


def slices(
    c: Connection,
    projects: Collection[str] | None = None,
    *,
    id: str | None = None,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """All slices with their slivers: of `projects` (None: of all), or the one with this id. where: see filters."""
    l, i = t.slices.c, t.images.c
    conditions = [*where]
    if projects is not None:
        conditions.append(l.project.in_(projects))
    if id is not None:
        conditions.append(l.id == id)
    exempt = t.lease_rules.c.exempt.label("exempt")
    kept = sa.select(sa.func.count()).where(t.snapshots.c.slice == l.id).scalar_subquery().label("snapshots")
    query = sa.select(t.slices, i.name.label("image_name"), exempt, kept).join(t.images, i.sha256 == l.image)
    query = query.outerjoin(t.lease_rules, t.lease_rules.c.project == l.project)
    heads = paging.rows(c, query.where(*conditions), page, By(l.name), By(l.project))
    s, n = t.slivers.c, t.nodes.c
    of_node = (n.address.label("node_address"), n.silent_since, n.lost)
    members = sa.select(*(s[name] for name in _COLUMNS), *of_node).join(t.nodes, n.name == s.node).order_by(s.idx)
    if conditions or page is not None:
        members = members.where(s.slice.in_([head.id for head in heads]))
    slivers: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(members):
        slivers[row.slice].append(_sliver(row))
    return [_slice(head, slivers[head.id]) for head in heads]


def slice(c: Connection, name: str, project: str = DEFAULT_PROJECT) -> Json:
    """The slice called `name` in the project. Refused(NOT_FOUND)."""
    l = t.slices.c
    id_ = c.scalar(sa.select(l.id).where(l.name == name, l.project == project))
    if id_ is None:
        raise access.missing("slice", name)
    return slice_of(c, id_)


def slice_of(c: Connection, id: str) -> Json:
    """The slice with this id. Refused(NOT_FOUND) if it was deleted."""
    found = slices(c, id=id)
    if not found:
        raise access.missing("slice", id)
    return found[0]


def slice_of_operation(c: Connection, operation: str) -> Json:
    """The slice of an operation. Refused(NOT_FOUND) if it was deleted."""
    o = t.operations.c
    return slice_of(c, c.scalar(sa.select(o.slice_id).where(o.id == operation)) or "")


def _slice(head: Row[*tuple[Any, ...]], slivers: list[Json]) -> Json:
    return {
        "name": head.name,
        "type": head.type,
        "project": head.project,
        "owner": head.owner,
        "state": slice_state([one["state"] for one in slivers]) if slivers else "deleting",
        "created_at": when(head.created_at),
        "expires_at": None if head.exempt else when(head.expires_at),
        "lease_ended_at": when(head.lease_ended_at),
        "notice": head.lease_notice or None,
        "image": head.image_name,
        "image_sha256": head.image,
        "boot": head.boot if head.type == SliverType.KVM else None,
        "init": head.init if head.type == SliverType.LXC else None,
        "on_loss": head.on_loss,
        "snapshots": head.snapshots,
        "slivers": slivers,
    }


def _usage(row: Row[*tuple[Any, ...]]) -> Json:
    """The latest sample. `memory` is the former name of `working`."""
    working, charged, disk, guest, at = _usage_of(row)
    return {
        "memory": working,
        "working": working,
        "charged": charged,
        "disk": disk,
        "guest_memory": guest,
        "at": None if at is None else when(datetime.fromtimestamp(at, UTC)),
    }


def _sliver(row: Row[*tuple[Any, ...]]) -> Json:
    key = row.host_key or None
    return {
        "index": row.idx,
        "id": row.id,
        "node": row.node,
        "state": _shown_state(row.desired, row.phase, row.lost),
        "unknown_since": when(row.silent_since) if row.lost else None,
        "address": row.address,
        "ssh": {
            "host": row.node_address,
            "port": row.port_first,
            "fingerprint": fingerprint(row.host_key),
            "host_key": key,
        },
        "ports": {"first": row.port_first, "last": row.port_first + row.port_count - 1},
        "limits": _limits(row),
        "usage": _usage(row),
        "acceleration": row.acceleration or None,
        "booted": row.booted or None,
        "keys_missing": row.keys_missing or None,
        "oom_kills": row.oom_kills,
        "oom_at": when(row.oom_at),
        "error": row.error or None,
    }


def _limits(source: object) -> Json:
    """pids: None if not limited."""
    limits = dict(zip(LIMITS, _limits_of(source), strict=True))
    limits["pids"] = limits["pids"] or None
    return limits


def plan(spec: SliceSpec, placed: Placement, owner: str, expires_at: datetime) -> Json:
    """The response to a dry run: the slice as it would be created, and why not on other nodes."""
    limits = _limits(spec.limits)
    return {
        "name": spec.name,
        "type": spec.type.value,
        "project": spec.project,
        "owner": owner,
        "state": "planned",
        "created_at": None,
        "expires_at": when(expires_at),
        "lease_ended_at": None,
        "notice": None,
        "image": placed.image_name,
        "image_sha256": placed.image,
        "boot": placed.boot.value if spec.type is SliverType.KVM else None,
        "init": spec.init.value if spec.type is SliverType.LXC else None,
        "on_loss": spec.on_loss.value,
        "snapshots": 0,
        "slivers": [
            {
                "index": index,
                "id": None,
                "node": node,
                "state": "planned",
                "unknown_since": None,
                "address": grant.address,
                "ssh": {
                    "host": placed.addresses[node],
                    "port": grant.ports.first,
                    "fingerprint": None,
                    "host_key": None,
                },
                "ports": {"first": grant.ports.first, "last": grant.ports.last},
                "limits": limits,
                "usage": dict.fromkeys(("memory", "working", "charged", "disk", "guest_memory", "at")),
                "acceleration": None,
                "booted": None,
                "keys_missing": None,
                "oom_kills": 0,
                "oom_at": None,
                "error": None,
            }
            for index, (node, grant) in enumerate(zip(placed.nodes, placed.grants, strict=True))
        ],
        "elsewhere": [{"node": name, "reason": reason.message} for name, reason in sorted(placed.elsewhere.items())],
    }

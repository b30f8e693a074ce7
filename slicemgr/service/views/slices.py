"""Slices as the JSON of the REST API. The number of queries does not grow with the number of slices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import DEFAULT_PROJECT, Desired, Phase, SliceSpec, SliverType
from slicemgr.policy import access
from slicemgr.service.slices.placement import Placement
from slicemgr.service.slices.specs import LIMITS
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, Where, fingerprint, shown_time, when, when_since_epoch
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t
from slicemgr.store.dialect import among

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
SETTLED = ("running", "stopped", "paused", "failed", UNKNOWN)  # states that do not change by themselves
_KVM, _LXC = SliverType.KVM.value, SliverType.LXC.value
_state_of = itemgetter("state")


def _query_of_slices() -> sa.Select[*tuple[Any, ...]]:
    """The values that `_slice` takes, in its order."""
    l, i, rules = t.slices.c, t.images.c, t.lease_rules.c
    kept = sa.select(sa.func.count()).where(t.snapshots.c.slice == l.id).scalar_subquery().label("snapshots")
    times = (shown_time(one) for one in (l.created_at, l.expires_at, l.lease_ended_at))
    columns = (l.id, l.name, l.type, l.project, l.owner, *times, l.lease_notice, i.name.label("image_name"), l.image)
    query = sa.select(*columns, l.boot, l.machine, l.init, l.on_loss, l.warm, rules.exempt.label("exempt"), kept)
    return query.join(t.images, i.sha256 == l.image).outerjoin(t.lease_rules, rules.project == l.project)


def _query_of_slivers() -> sa.Select[*tuple[Any, ...]]:
    """The values that `_sliver` takes, in its order, after the id of the slice."""
    s, n = t.slivers.c, t.nodes.c
    columns = (
        *(s.slice, s.idx, s.id, s.node, s.desired, s.phase, n.lost, shown_time(n.silent_since), s.address),
        *(n.address.label("node_address"), s.port_first, s.port_count, s.host_key, *(s[name] for name in LIMITS)),
        *(s.usage_working, s.usage_charged, s.usage_disk, s.guest_memory, s.usage_at),
        *(s.acceleration, s.booted, s.keys_missing, s.oom_kills, shown_time(s.oom_at), s.error),
    )
    return sa.select(*columns).join(t.nodes, n.name == s.node).order_by(s.idx)


# Made once: to make them takes as long as to execute them.
_SLICES, _SLIVERS = _query_of_slices(), _query_of_slivers()
_ONE = _SLICES.where(t.slices.c.id == sa.bindparam("id"))
_SLIVERS_OF_ONE = _SLIVERS.where(t.slivers.c.slice == sa.bindparam("id"))
_OF_OPERATION = sa.select(t.operations.c.slice_id).where(t.operations.c.id == sa.bindparam("id"))


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


def slice_state(states: Iterable[str]) -> str:
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
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """All slices with their slivers: of `projects` (None: of all). where: see filters."""
    l = t.slices.c
    conditions = [*where]
    if projects is not None:
        conditions.append(l.project.in_(projects))
    heads = paging.rows(c, _SLICES.where(*conditions), page, By(l.name), By(l.project))
    members = _SLIVERS
    if conditions or page is not None:
        members = members.where(among(c, t.slivers.c.slice, [head[0] for head in heads]))
    slivers: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(members).all():
        slivers[row[0]].append(_sliver(row))
    return [_slice(head, slivers[head[0]]) for head in heads]


def slice(c: Connection, name: str, project: str = DEFAULT_PROJECT) -> Json:
    """The slice called `name` in the project. Refused(NOT_FOUND)."""
    l = t.slices.c
    id_ = c.scalar(sa.select(l.id).where(l.name == name, l.project == project))
    if id_ is None:
        raise access.missing("slice", name)
    return slice_of(c, id_)


def slice_of(c: Connection, id: str) -> Json:
    """The slice with this id. Refused(NOT_FOUND) if it was deleted."""
    found = with_id(c, id)
    if found is None:
        raise access.missing("slice", id)
    return found


def with_id(c: Connection, id: str) -> Json | None:
    """The slice with this id; None if it was deleted."""
    head = c.execute(_ONE, {"id": id}).first()
    return None if head is None else _slice(head, [_sliver(row) for row in c.execute(_SLIVERS_OF_ONE, {"id": id})])


def slice_of_operation(c: Connection, operation: str) -> Json:
    """The slice of an operation. Refused(NOT_FOUND) if it was deleted."""
    return slice_of(c, c.scalar(_OF_OPERATION, {"id": operation}) or "")


def _slice(row: Row[*tuple[Any, ...]], slivers: list[Json]) -> Json:
    _, name, type_, project, owner, created, expires, ended, notice, image, sha256, *others = row
    boot, machine, init, on_loss, warm, exempt, kept = others
    return {
        "name": name,
        "type": type_,
        "project": project,
        "owner": owner,
        "state": slice_state(map(_state_of, slivers)) if slivers else "deleting",
        "created_at": when(created),
        "expires_at": None if exempt else when(expires),
        "lease_ended_at": when(ended),
        "notice": notice or None,
        "image": image,
        "image_sha256": sha256,
        "boot": boot if type_ == _KVM else None,
        "machine": machine if type_ == _KVM else None,
        "init": init if type_ == _LXC else None,
        "on_loss": on_loss,
        "warm": warm,
        "snapshots": kept,
        "slivers": slivers,
    }


def _sliver(row: Row[*tuple[Any, ...]]) -> Json:
    """Values are taken by their place: to take thousands by their name takes longer than all the rest."""
    _, index, id_, node, desired, phase, lost, silent_since, address, host, port, ports, host_key, *others = row
    *limits, working, charged, disk, guest, at, acceleration, booted, keys_missing, kills, oom_at, error = others
    return {
        "index": index,
        "id": id_,
        "node": node,
        "state": _shown_state(desired, phase, lost),
        "unknown_since": when(silent_since) if lost else None,
        "address": address,
        "ssh": {
            "host": host,
            "port": port,
            "fingerprint": fingerprint(host_key),
            "host_key": host_key or None,
        },
        "ports": {"first": port, "last": port + ports - 1},
        "limits": _limits(limits),
        "usage": {  # the latest sample; `memory` is the former name of `working`
            "memory": working,
            "working": working,
            "charged": charged,
            "disk": disk,
            "guest_memory": guest,
            "at": when_since_epoch(at),
        },
        "acceleration": acceleration or None,
        "booted": booted or None,
        "keys_missing": keys_missing or None,
        "oom_kills": kills,
        "oom_at": when(oom_at),
        "error": error or None,
    }


def _limits(values: Iterable[Any]) -> Json:
    """values: in the order of LIMITS. pids: None if not limited."""
    cpu, cpu_shares, memory, guarantee, weight, most, soft, disk, pids, *others = values
    io_weight, io_rate, io_ops, net_in, net_out = others
    return {
        "cpu": cpu,
        "cpu_shares": cpu_shares,
        "memory": memory,
        "memory_guarantee": guarantee,
        "memory_weight": weight,
        "memory_max": most,
        "memory_soft": soft,
        "disk": disk,
        "pids": pids or None,
        "io_weight": io_weight,
        "io_rate": io_rate,
        "io_ops": io_ops,
        "net_in": net_in,
        "net_out": net_out,
    }


def plan(spec: SliceSpec, placed: Placement, owner: str, expires_at: datetime) -> Json:
    """The response to a dry run: the slice as it would be created, and why not on other nodes."""
    limits = _limits(getattr(spec.limits, name) for name in LIMITS)
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
        "machine": spec.machine.value if spec.type is SliverType.KVM else None,
        "init": spec.init.value if spec.type is SliverType.LXC else None,
        "on_loss": spec.on_loss.value,
        "warm": bool(placed.spare),
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

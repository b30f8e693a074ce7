"""What people are shown, made of rows: the JSON of the REST API. The number of queries never grows with the rows."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import DEFAULT_PROJECT, Desired, Kind, OperationState, Phase, SliceSpec
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import images as image_service
from slicemgr.service.slices.placement import Placement
from slicemgr.service.slices.specs import LIMITS
from slicemgr.service.views import paging
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t

Json = dict[str, Any]
Where = Iterable[sa.ColumnElement[bool]]

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
SETTLED = ("running", "stopped", "paused", "failed")  # what a sliver stays in by itself
_ALL_STEPS = 20  # of an operation on more slivers, only the steps that are not done are shown
_SSH_BLOB = 1  # the word of a public key line that is the key


def sliver_state(desired: Desired, phase: Phase) -> str:
    """One word for what a sliver is, or is on its way to."""
    if desired is Desired.ABSENT:
        return "deleting"
    if phase is Phase.FAILED:
        return "failed"
    if phase is _SETTLED[desired]:
        return phase.value
    return _ON_THE_WAY.get((desired, phase), "stopping" if desired is Desired.STOPPED else "starting")


def slice_state(states: Collection[str]) -> str:
    """One word for all slivers: theirs if they agree, else what is still moving, else `partial`."""
    different = set(states)
    if len(different) == 1:
        return different.pop()
    moving = different.difference(SETTLED)
    return sorted(moving)[0] if moving else "partial"


def when(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, to the second."""
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def fingerprint(host_key: str) -> str | None:
    """`SHA256:…` of a public key line, as ssh prints it; None before there is a key."""
    words = host_key.split()
    if len(words) <= _SSH_BLOB:
        return None
    digest = hashlib.sha256(base64.b64decode(words[_SSH_BLOB])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def slices(
    c: Connection,
    projects: Collection[str] | None = None,
    *,
    id: str | None = None,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """Every slice with its slivers: of `projects` (None: of all), or the one with this id. where: see filters."""
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
    members = sa.select(t.slivers, n.address.label("node_address")).join(t.nodes, n.name == s.node).order_by(s.idx)
    if conditions or page is not None:
        members = members.where(s.slice.in_([head.id for head in heads]))
    slivers: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(members):
        slivers[row.slice].append(_sliver(row))
    return [_slice(head, slivers[head.id]) for head in heads]


def slice(c: Connection, name: str, project: str = DEFAULT_PROJECT) -> Json:
    """Refused(NOT_FOUND) if there is no slice called `name` in the project."""
    l = t.slices.c
    id_ = c.scalar(sa.select(l.id).where(l.name == name, l.project == project))
    if id_ is None:
        raise access.missing("slice", name)
    return slice_of(c, id_)


def slice_of(c: Connection, id: str) -> Json:
    """Refused(NOT_FOUND) if the slice is gone."""
    found = slices(c, id=id)
    if not found:
        raise access.missing("slice", id)
    return found[0]


def slice_of_operation(c: Connection, operation: str) -> Json:
    """Refused(NOT_FOUND) if the slice is gone."""
    o = t.operations.c
    return slice_of(c, c.scalar(sa.select(o.slice_id).where(o.id == operation)) or "")


def _slice(head: Row[*tuple[Any, ...]], slivers: list[Json]) -> Json:
    return {
        "name": head.name,
        "type": head.kind,
        "project": head.project,
        "owner": head.owner,
        "state": slice_state([one["state"] for one in slivers]) if slivers else "deleting",
        "created_at": when(head.created_at),
        "expires_at": None if head.exempt else when(head.expires_at),
        "lease_ended_at": when(head.lease_ended_at),
        "notice": head.lease_notice or None,
        "image": head.image_name,
        "image_sha256": head.image,
        "boot": head.boot if head.kind == Kind.KVM else None,
        "snapshots": head.snapshots,
        "slivers": slivers,
    }


def _usage(row: Row[*tuple[Any, ...]]) -> Json:
    """The latest sample. `memory` is the former name of `working`."""
    return {
        "memory": row.usage_working,
        "working": row.usage_working,
        "charged": row.usage_charged,
        "disk": row.usage_disk,
        "guest_memory": row.guest_memory,
        "at": None if row.usage_at is None else when(datetime.fromtimestamp(row.usage_at, UTC)),
    }


def _sliver(row: Row[*tuple[Any, ...]]) -> Json:
    key = row.host_key or None
    return {
        "index": row.idx,
        "id": row.id,
        "node": row.node,
        "state": sliver_state(Desired(row.desired), Phase(row.phase)),
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
        "error": row.error or None,
    }


def _limits(source: object) -> Json:
    """pids: None where nothing limits them."""
    limits = {name: getattr(source, name) for name in LIMITS}
    return {**limits, "pids": limits["pids"] or None}


def plan(spec: SliceSpec, placed: Placement, address: str, owner: str, expires_at: datetime) -> Json:
    """What a dry run answers: the slice as it would be. address: the node's."""
    limits = _limits(spec.limits)
    return {
        "name": spec.name,
        "type": spec.kind.value,
        "project": spec.project,
        "owner": owner,
        "state": "planned",
        "created_at": None,
        "expires_at": when(expires_at),
        "lease_ended_at": None,
        "notice": None,
        "image": placed.image_name,
        "image_sha256": placed.image,
        "boot": placed.boot.value if spec.kind is Kind.KVM else None,
        "snapshots": 0,
        "slivers": [
            {
                "index": index,
                "id": None,
                "node": placed.node,
                "state": "planned",
                "address": grant.address,
                "ssh": {"host": address, "port": grant.ports.first, "fingerprint": None, "host_key": None},
                "ports": {"first": grant.ports.first, "last": grant.ports.last},
                "limits": limits,
                "usage": dict.fromkeys(("memory", "working", "charged", "disk", "guest_memory", "at")),
                "acceleration": None,
                "booted": None,
                "keys_missing": None,
                "error": None,
            }
            for index, grant in enumerate(placed.grants)
        ],
    }


def operations(
    c: Connection,
    projects: Collection[str] | None = None,
    *,
    state: str = "",
    slice: str = "",
    limit: int = 50,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The newest operations first, with their steps: of `projects`, None: all. limit: without a page."""
    o = t.operations.c
    query = sa.select(t.operations).where(*where)
    if projects is not None:
        query = query.where(o.project.in_(projects))
    if state:
        query = query.where(o.state == state)
    if slice:
        query = query.where(o.slice_name == slice)
    return _operations(c, paging.rows(c, query, page or Page(limit), By(o.created_at, down=True), By(o.id)))


def operation(c: Connection, id: str, by: Principal | None = None) -> Json:
    """Refused(NOT_FOUND) if there is no such operation, or `by` may not see it."""
    row = c.execute(sa.select(t.operations).where(t.operations.c.id == id)).first()
    if row is None:
        raise access.missing("operation", id)
    if by is not None:
        access.see_operation(by, row.project, id)
    return _operations(c, [row])[0]


def operation_versions(c: Connection, ids: Collection[str]) -> dict[str, tuple[int, str]]:
    """Version and state of those that are there: the little that waiting requests ask for again and again."""
    o = t.operations.c
    return {
        row.id: (row.version, row.state) for row in c.execute(sa.select(o.id, o.version, o.state).where(o.id.in_(ids)))
    }


def _operations(c: Connection, rows: Sequence[Row[*tuple[Any, ...]]]) -> list[Json]:
    ids = [row.id for row in rows]
    m = t.operation_slivers.c
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    query = sa.select(m.operation, m.state, sa.func.count()).where(m.operation.in_(ids)).group_by(m.operation, m.state)
    for id_, state, count in c.execute(query):
        counts[id_][state] += count
    asked = {row.id: row.created_at for row in rows}
    steps = _steps(c, asked, [id_ for id_ in ids if sum(counts[id_].values()) > _ALL_STEPS])
    return [_operation(row, steps[row.id], counts[row.id]) for row in rows]


def _steps(c: Connection, asked: Mapping[str, datetime], large: Sequence[str]) -> dict[str, list[Json]]:
    """The steps of each operation, of the `large` ones only those that are not done. asked: when each was."""
    p, ids = t.operation_steps.c, list(asked)
    columns = (p.operation, p.sliver, p.name, p.state, p.detail, p.percent, p.started_at, p.finished_at)
    query = sa.select(*columns).where(p.operation.in_(ids)).order_by(p.started_at)
    if large:
        query = query.where(sa.or_(p.operation.not_in(large), p.state != OperationState.DONE))
    steps: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(query):
        step = {"sliver": row.sliver, "name": row.name, "state": row.state}
        took = None if row.finished_at is None else _seconds(row.started_at, row.finished_at)
        times = {"began": _seconds(asked[row.operation], row.started_at), "seconds": took}
        steps[row.operation].append({**step, "detail": row.detail, "percent": row.percent, **times})
    return steps


def _seconds(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 6)


def _operation(row: Row[*tuple[Any, ...]], steps: list[Json], counts: Mapping[str, int]) -> Json:
    ended = sum(count for state, count in counts.items() if state in ("done", "failed"))
    return {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "slice": row.slice_name or None,
        "project": row.project or None,
        "image": row.image_name or None,
        "user": row.user,
        "created_at": when(row.created_at),
        "started_at": when(row.started_at),
        "finished_at": when(row.finished_at),
        "error": row.error or None,
        "hint": row.hint or None,
        "version": row.version,
        "progress": {"done": ended, "total": sum(counts.values())},
        "steps": steps,
        "result": row.result,
    }


def images(
    c: Connection,
    sha256: str | None = None,
    projects: Collection[str] | None = None,
    *,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The images for all and those of `projects` (None: of all), or the one with this sha256."""
    i, l = t.images.c, t.slices.c
    used = sa.select(sa.func.count()).where(l.image == i.sha256).scalar_subquery().label("used_by")
    query = sa.select(t.images, used).where(image_service.visible(projects), *where)
    if sha256 is not None:
        query = query.where(i.sha256 == sha256)
    fields = ("name", "sha256", "format", "virtual_size", "file_size", "arch", "os", "state")
    return [
        {
            **{name: getattr(row, name) for name in fields},
            "boot": row.boot,
            "created_at": when(row.created_at),
            "used_by": row.used_by,
            "project": row.project,
        }
        for row in paging.rows(c, query, page, By(i.name))
    ]


def nodes(c: Connection, network: NetworkConfig, name: str | None = None, page: Page | None = None) -> list[Json]:
    """Every node with what it has and what of it is given. Refused(NOT_FOUND) for an unknown `name`."""
    n, s = t.nodes.c, t.slivers.c
    query = sa.select(t.nodes)
    if name is not None:
        query = query.where(n.name == name)
    rows = paging.rows(c, query, page, By(n.name))
    if name is not None and not rows:
        raise Refused(Code.NOT_FOUND, f"there is no node {name[:80]!r}", hint="list them with `slicectl node list`")
    sums = sa.select(s.node, sa.func.count(), *(sa.func.sum(one) for one in (s.memory, s.disk, s.port_count)))
    used = {row[0]: row[1:] for row in c.execute(sums.group_by(s.node))}
    return [_node(row, used.get(row.name, (0, 0, 0, 0)), network) for row in rows]


def _node(row: Row[*tuple[Any, ...]], used: Sequence[Any], network: NetworkConfig) -> Json:
    slivers, memory, disk, ports = (int(one or 0) for one in used)
    facts = dict(row.facts)
    return {
        "name": row.name,
        "address": row.address,
        "agent_seen_at": when(row.agent_seen_at),
        "facts": facts,
        "capacity": {
            "memory": facts.get("memory", 0),
            "disk": facts.get("disk_total", 0),
            "cpus": facts.get("cpus", 0),
            "ports": network.ports_last - network.ports_first + 1,
        },
        "used": {
            "slivers": slivers,
            "memory_limits": memory,
            "disk_limits": disk,
            "ports": ports,
            "addresses": slivers,
        },
    }


def events(
    c: Connection,
    by: Principal | None = None,
    *,
    slice: str = "",
    project: str = "",
    limit: int = 100,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The newest events first: all of them, or what `by` sees: their projects' and their own.

    Where somebody else asked from is the admins' to know.
    limit: without a page.
    """
    e = t.events.c
    query = sa.select(t.events).where(*where)
    if by is not None and not by.admin:
        query = query.where(sa.or_(e.project.in_(tuple(by.roles)), sa.and_(e.project == "", e.user == by.user)))
    if project:
        query = query.where(e.project == project)
    if slice:
        query = query.where(e.slice == slice)
    return [
        {
            "id": row.id,
            "at": when(row.at),
            "user": row.user,
            "action": row.action,
            "slice": row.slice or None,
            "project": row.project or None,
            "detail": row.detail,
            "address": (row.address or None) if by is None or by.admin or row.user == by.user else None,
        }
        for row in paging.rows(c, query, page or Page(limit), By(e.id, down=True))
    ]

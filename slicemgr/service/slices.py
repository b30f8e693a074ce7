"""What people do with slices. Each function is one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Boot, BootFacts, Desired, ImageState, Kind, Limits, Phase, PortBlock, SliceSpec
from slicemgr.policy import allocate, leases
from slicemgr.policy.access import Principal, require
from slicemgr.service import nodes, operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import DEFAULT_PROJECT
from slicemgr.store.updates import utcnow
from slicemgr.store.wake import wake
from slicemgr.store.work import SLIVER_OPERATIONS

ACTIONS = ("start", "stop", "restart", "pause", "resume", "delete")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a slice would go and what it would get."""

    node: str
    image: str  # sha256
    image_name: str
    boot: Boot
    grants: list[allocate.Grant]
    cursors: allocate.Cursors


def create(store: Store, config: Config, spec: SliceSpec, by: Principal) -> str:
    """Allocate, insert and ask for a slice; the operation's id. Refused: nothing happened."""
    require(by, "make slices")
    try:
        with store.write() as c:
            now = utcnow()
            operation = _insert(c, spec, place(c, config, spec), by, now, leases.grant(spec.lease, now, config.lease))
    except exc.IntegrityError as error:  # only where writers are not alone: somebody was quicker
        raise Refused(Code.CONFLICT, "another request got in between", hint="try again") from error
    wake(config.wake_socket)
    return operation


def place(c: Connection, config: Config, spec: SliceSpec) -> Placement:
    """Choose the node and what each sliver gets. Refused if the request cannot be met."""
    taken = sa.select(t.slices.c.id).where(t.slices.c.project == DEFAULT_PROJECT, t.slices.c.name == spec.name)
    if c.scalar(taken) is not None:
        raise Refused(Code.CONFLICT, f"there is a slice {spec.name!r} already", hint="choose another", field="name")
    image = _image(c, spec.image)
    node = nodes.choose(c, spec.node)
    nodes.check_able(node, spec)
    boot = _check_image(image, spec)
    given = _given(c, node.name)
    allocate.check_capacity(node.capacity, config.limits, given, spec.count, spec.limits)
    grants, cursors = allocate.allocate(config.network, given, node.cursors, spec.count, spec.ports)
    return Placement(node.name, image.sha256, image.name, boot, grants, cursors)


def _image(c: Connection, wanted: str) -> Row[*tuple[Any, ...]]:
    i = t.images.c
    columns = sa.select(i.sha256, i.name, i.state, i.arch, i.boot)
    row = c.execute(columns.where(sa.or_(i.name == wanted, i.sha256 == wanted))).first()
    if row is None:
        hint = "`slicectl image list` shows what there is"
        raise Refused(Code.INVALID, f"there is no image {wanted[:80]!r}", hint=hint, field="image")
    if row.state != ImageState.READY:
        doing = "being deleted" if row.state == ImageState.DELETING else "still being imported"
        raise Refused(Code.CONFLICT, f"image {row.name} is {doing}", hint="`slicectl image list`", field="image")
    return row


def _check_image(image: Row[*tuple[Any, ...]], spec: SliceSpec) -> Boot:
    """How a sliver of the image boots. Refused if the image cannot be what is asked for."""
    if image.arch not in ("", "x86_64", "i686"):
        raise invalid("image", f"{image.name} is for {image.arch}", "one for x86_64 or i686 is needed")
    if spec.kind is Kind.LXC:
        if not image.arch:
            raise invalid("type", f"image {image.name} has no Linux in it that a container could run", "kvm")
        return Boot.DIRECT
    if not image.boot:
        raise invalid("image", f"{image.name} was imported before this version made kvm slivers", "import it again")
    facts = BootFacts(**image.boot)
    boot = facts.choose(spec.boot)
    if boot is not None:
        return boot
    if facts.choose(Boot.LOADER) is None:
        raise invalid("image", f"{image.name} has neither a boot loader nor a kernel", "lxc needs none")
    able = [one.value for one in Boot if facts.choose(one)]
    raise invalid("boot", f"image {image.name} cannot boot by {spec.boot}", f"it can: {', '.join(able)}")


def _given(c: Connection, node: str) -> list[allocate.Given]:
    s = t.slivers.c
    query = sa.select(s.address, s.port_first, s.port_count, s.uid_first, s.memory, s.disk).where(s.node == node)
    return [
        allocate.Given(address, PortBlock(first, count), uid, memory, disk)
        for address, first, count, uid, memory, disk in c.execute(query)
    ]


def _insert(c: Connection, spec: SliceSpec, placed: Placement, by: Principal, now: datetime, expires: datetime) -> str:
    tag = names.new_tag()
    c.execute(
        t.slices.insert().values(
            id=tag,
            name=spec.name,
            project=DEFAULT_PROJECT,
            owner=by.user,
            kind=spec.kind,
            image=placed.image,
            count=spec.count,
            ssh_keys=list(spec.ssh_keys),
            boot=placed.boot,
            user_data=spec.user_data,
            created_at=now,
            expires_at=expires,
        )
    )
    ids = [names.sliver_id(tag, index) for index in range(spec.count)]
    _insert_slivers(c, spec, placed, tag, ids, now)
    cursors = placed.cursors
    c.execute(
        t.nodes.update()
        .where(t.nodes.c.name == placed.node)
        .values(next_address=cursors.address, next_port=cursors.port, next_uid=cursors.uid)
    )
    subject = operations.Subject(placed.node, tag, spec.name, placed.image, placed.image_name, ids)
    detail = f"{spec.count} × {spec.kind} of {placed.image_name}"
    operations.note(c, by.user, "create", now, slice=spec.name, project=DEFAULT_PROJECT, detail=detail)
    return operations.add(c, "create", subject, by.user, now)


def _insert_slivers(c: Connection, spec: SliceSpec, placed: Placement, tag: str, ids: list[str], now: datetime) -> None:
    same = {
        "slice": tag,
        "node": placed.node,
        "desired": Desired.RUNNING,
        "phase": Phase.PENDING,
        **asdict(spec.limits),
        "updated_at": now,
    }
    rows = [
        {
            **same,
            "id": id_,
            "idx": index,
            "address": grant.address,
            "uid_first": grant.uid_first,
            "port_first": grant.ports.first,
            "port_count": grant.ports.count,
        }
        for index, (id_, grant) in enumerate(zip(ids, placed.grants, strict=True))
    ]
    c.execute(t.slivers.insert(), rows)
    s = t.slivers.c
    serials = c.execute(sa.select(s.serial, s.port_first, s.port_count).where(s.slice == tag)).all()
    ports = [
        {"node": placed.node, "port": port, "sliver": serial}
        for serial, first, count in serials
        for port in range(first, first + count)
    ]
    c.execute(t.ports.insert(), ports)


def find(c: Connection, name: str) -> Row[*tuple[Any, ...]]:
    """The slice called `name`. Refused(NOT_FOUND) if there is none."""
    l = t.slices.c
    query = sa.select(l.id, l.name, l.project, l.lease_ended_at).where(l.project == DEFAULT_PROJECT, l.name == name)
    row = c.execute(query).first()
    if row is None:
        raise Refused(Code.NOT_FOUND, f"there is no slice {name[:80]!r}", hint="`slicectl list` shows what there is")
    return row


def act(
    store: Store, config: Config, name: str, action: str, by: Principal, params: Mapping[str, Any] | None = None
) -> str:
    """Start, stop, restart, pause, resume or delete a slice; the operation's id.

    Refused(NOT_FOUND), Refused(CONFLICT) if it is being deleted or not in a state for it.
    """
    require(by, f"{action} slices")
    with store.write() as c:
        row = find(c, name)
        if action in ("start", "restart", "resume") and row.lease_ended_at is not None:
            hint = f"`slicectl renew {name}` first"
            raise Refused(Code.CONFLICT, f"the lease of slice {name} has ended", hint=hint)
        operation = change(c, row, action, by.user, utcnow(), params)
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
) -> str:
    """Write what a slice shall be, ask for it and note it; the operation's id. Refused(CONFLICT)."""
    s = t.slivers.c
    slivers = c.execute(sa.select(s.id, s.node, s.desired).where(s.slice == row.id).order_by(s.idx)).all()
    _check_possible(row.name, action, {sliver.desired for sliver in slivers})
    values: dict[str, Any] = {"updated_at": now}
    if SLIVER_OPERATIONS[action] is not None:
        values["desired"] = SLIVER_OPERATIONS[action]
    if action == "restart":
        values["generation"] = s.generation + 1
    c.execute(t.slivers.update().where(s.slice == row.id).values(**values))
    operations.note(c, user, action, now, slice=row.name, project=row.project, detail=why)
    subject = operations.Subject(slivers[0].node, row.id, row.name, slivers=[sliver.id for sliver in slivers])
    return operations.add(c, action, subject, user, now, params)


def _check_possible(name: str, action: str, desired: set[str]) -> None:
    if Desired.ABSENT in desired:
        raise Refused(Code.CONFLICT, f"slice {name} is being deleted", hint="wait until it is gone")
    if action == "pause" and desired != {Desired.RUNNING}:
        raise Refused(Code.CONFLICT, f"slice {name} is not running", hint="only a running slice can be paused")
    if action == "resume" and desired != {Desired.PAUSED}:
        raise Refused(
            Code.CONFLICT, f"slice {name} is not paused", hint=f"`slicectl start {name}` starts a stopped one"
        )


def resize(store: Store, config: Config, name: str, disk: int, by: Principal) -> str:
    """Raise the disk limit of each sliver to `disk` bytes; the operation's id.

    Refused(CONFLICT) if that is no more than it has: files and file systems do not shrink by themselves.
    """
    require(by, "resize slices")
    with store.write() as c:
        row, s = find(c, name), t.slivers.c
        own = c.execute(sa.select(s.id, s.node, s.disk, s.memory).where(s.slice == row.id)).all()
        most = max(one.disk for one in own)
        if disk <= most:
            hint = f"more than {allocate.size_text(most)}: a disk cannot shrink"
            raise Refused(Code.CONFLICT, f"the limit of slice {name} is as large already", hint=hint, field="disk")
        node = nodes.choose(c, own[0].node)
        added = Limits(memory=0, disk=disk - most, pids=0, cpu=0)
        given = _given(c, node.name)
        allocate.check_capacity(node.capacity, config.limits, given, len(own), added)
        c.execute(t.slivers.update().where(s.slice == row.id).values(disk=disk))
        operation = change(c, row, "resize", by.user, utcnow(), why=f"disk {allocate.size_text(disk)}")
    wake(config.wake_socket)
    return operation


def renew(store: Store, config: Config, name: str, lease: timedelta, by: Principal) -> None:
    """Let a slice live on: as long as asked for, or as long as policy allows. What was stopped stays stopped."""
    require(by, "renew slices")
    with store.write() as c:
        row = find(c, name)
        if c.scalar(sa.select(sa.exists().where(t.slivers.c.slice == row.id, t.slivers.c.desired == Desired.ABSENT))):
            raise Refused(Code.CONFLICT, f"slice {name} is being deleted", hint="make a new one")
        now = utcnow()
        expires = leases.renew(lease, now, config.lease)
        c.execute(t.slices.update().where(t.slices.c.id == row.id).values(expires_at=expires, lease_ended_at=None))
        detail = f"until {expires:%Y-%m-%dT%H:%M:%SZ}"
        operations.note(c, by.user, "renew", now, slice=name, project=row.project, detail=detail)


def check_action(action: str) -> str:
    if action not in ACTIONS:
        raise invalid("action", f"{action[:40]!r} is unknown", ", ".join(ACTIONS))
    return action

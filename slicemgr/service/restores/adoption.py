"""Adopt a slice that exists on a node without a row: it keeps its slivers, addresses, ports and id ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.model import Desired, ImageState, Phase, Sliver
from slicemgr.policy import leases
from slicemgr.service.nodes import operations
from slicemgr.service.projects import projects
from slicemgr.service.restores import review
from slicemgr.service.restores.review import Found
from slicemgr.service.slices import specs
from slicemgr.store import Store, allocations, rows
from slicemgr.store import tables as t
from slicemgr.store.incarnation import REVIEW
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

_DESIRED = {"running": Desired.RUNNING, "paused": Desired.PAUSED}
_PHASES = {"running": Phase.RUNNING, "paused": Phase.PAUSED}


@dataclass(frozen=True, slots=True)
class Wish:
    """Which slice to adopt: its name, its id or one of its slivers. project, owner, name: "": as it was, the admin, as
    it was.
    """

    slice: str
    project: str = ""
    owner: str = ""
    name: str = ""


def adopt(store: Store, config: Config, wish: Wish) -> str:
    """Insert the rows of a slice without one, with the lease of a new slice; its name.

    Refused(NOT_FOUND), and (CONFLICT) if its record cannot be read or what it uses belongs to another slice.
    """
    with store.write() as c:
        chosen = review.select(review.review(c).found, wish.slice)
        records = [one.record for one in chosen if one.record is not None]
        if not chosen:
            hint = f"list what is to be reviewed with `{REVIEW}`"
            raise Refused(Code.NOT_FOUND, f"no sliver of {wish.slice[:80]!r} exists without a row", hint=hint)
        _check_complete(chosen, wish.slice)
        for found, record in zip(chosen, records, strict=True):
            _check_free(c, found.node, record)
        name = _adopt_slice(c, config, wish, chosen, records)
    wake(config.wake_socket)
    return name


def _check_complete(chosen: Sequence[Found], wanted: str) -> None:
    for one in chosen:
        if one.record is None:
            message = f"the record of sliver {one.sliver} cannot be read, so its row is unknown"
            raise Refused(Code.CONFLICT, message, hint=f"release it: `slicemgr restore --release {wanted}`")
        if one.released:
            raise Refused(Code.CONFLICT, f"sliver {one.sliver} was released", hint="its agent removes it")


def _check_free(c: Connection, node: str, record: Sliver) -> None:
    """Refuse what another sliver of the rows has been allocated, with the name of its slice."""
    s, p = t.slivers.c, t.ports.c
    ports = p.port.between(record.ports.first, record.ports.last)
    holder = sa.select(p.sliver).where(p.node == node, ports)
    taken = sa.or_(s.address == record.address, s.uid_first == record.uid_first, s.serial.in_(holder))
    query = sa.select(t.slices.c.name, t.slices.c.id, s.id.label("sliver")).join(t.slices, t.slices.c.id == s.slice)
    other = c.execute(query.where(sa.or_(sa.and_(s.node == node, taken), s.serial == record.serial))).first()
    if other is not None:
        message = f"what sliver {record.id} uses belongs to {other.sliver} of slice {other.name} in the backup"
        raise Refused(
            Code.CONFLICT, message, hint=f"if its root is gone, release it: `slicemgr restore --release {other.id}`"
        )


def _adopt_slice(c: Connection, config: Config, wish: Wish, chosen: Sequence[Found], records: Sequence[Sliver]) -> str:
    first, now = records[0], utcnow()
    there = c.execute(sa.select(t.slices.c.name, t.slices.c.project).where(t.slices.c.id == first.tag)).first()
    if there is None:
        name, project = wish.name or first.slice_name, wish.project or first.project
        _insert_slice(c, config, wish, first, name, project, now)
    else:
        name, project = there.name, there.project
    for found, record in zip(chosen, records, strict=True):
        _insert_sliver(c, found, record, now)
        review.insert_snapshots(c, record.id, found.snapshots)
    u = t.unclaimed.c
    c.execute(t.unclaimed.delete().where(u.sliver.in_([one.sliver for one in chosen])))
    detail = f"{', '.join(one.sliver for one in chosen)} on {', '.join(sorted({one.node for one in chosen}))}"
    operations.note(c, ADMIN, "restore adopt", now, slice=name, project=project, detail=detail)
    return name


def _insert_slice(
    c: Connection, config: Config, wish: Wish, first: Sliver, name: str, project: str, now: datetime
) -> None:
    specs.slice_name(name)
    projects.check_exists(c, project)
    owner = wish.owner or ADMIN
    if c.scalar(sa.select(t.users.c.name).where(t.users.c.name == owner)) is None:
        hint = "`slicectl user list`"
        raise Refused(Code.INVALID, f"there is no user {owner[:80]!r}", hint=hint, field="--owner")
    l = t.slices.c
    if c.scalar(sa.select(l.id).where(l.project == project, l.name == name)) is not None:
        hint = "adopt it by another name with `--name NAME`"
        raise Refused(Code.CONFLICT, f"project {project} has a slice {name!r}", hint=hint, field="--adopt")
    _ensure_image(c, first, project, now)
    lease = projects.lease_policy(c, config, project).default
    c.execute(
        t.slices.insert().values(
            id=first.tag,
            name=name,
            project=project,
            owner=owner,
            type=first.type,
            image=first.image,
            count=first.siblings,
            ssh_keys=list(first.ssh_keys),
            named_keys=list(first.ssh_keys),
            boot=first.boot,
            machine=first.machine,
            init=first.init,
            user_data=first.user_data,
            created_at=now,
            expires_at=leases.grant(lease, now, config.lease),
        )
    )


def _ensure_image(c: Connection, first: Sliver, project: str, now: datetime) -> None:
    """Insert the row of an image that was imported after the backup. It belongs to the project alone."""
    i = t.images.c
    if c.scalar(sa.select(i.sha256).where(i.sha256 == first.image)) is not None:
        return
    c.execute(
        t.images.insert().values(
            sha256=first.image,
            name=f"restored-{first.image[:12]}",
            format=first.image_format,
            virtual_size=first.image_size,
            file_size=0,
            arch=first.arch,
            boot=first.boot_facts.to_json(),
            state=ImageState.READY,
            project=project,
            created_at=now,
        )
    )


def _insert_sliver(c: Connection, found: Found, record: Sliver, now: datetime) -> None:
    row: dict[str, Any] = {
        "serial": record.serial,
        "id": record.id,
        "slice": record.tag,
        "idx": record.index,
        "node": found.node,
        "desired": _DESIRED.get(found.state, Desired.STOPPED),
        "phase": _PHASES.get(found.state, Phase.STOPPED),
        "generation": record.generation,
        "host_key": record.host_key,
        "address": record.address,
        "uid_first": record.uid_first,
        "port_first": record.ports.first,
        "port_count": record.ports.count,
        **asdict(record.limits),
        "origin": record.origin,
        "inherited": record.inherited,
        "epoch": record.epoch,
        "updated_at": now,
    }
    last = rows.last_number(c, t.slivers) or 0
    try:
        c.execute(t.slivers.insert().values(**row))
        allocations.take(c, t.slivers.c.id == record.id)
        ports = range(record.ports.first, record.ports.last + 1)
        c.execute(t.ports.insert(), [{"node": found.node, "port": port, "sliver": record.serial} for port in ports])
    except exc.IntegrityError as error:
        raise Refused(
            Code.CONFLICT, f"what sliver {record.id} uses belongs to another one", hint=f"`{REVIEW}`"
        ) from error
    rows.continue_after(c, t.slivers, "serial", max(last, record.serial))

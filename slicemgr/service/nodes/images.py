"""Register, publish and delete disk images. The agent owns the files; the web process only spools uploads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import ImageState, NodeState
from slicemgr.policy import access, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.image_blocks import BASE
from slicemgr.service.nodes import membership, operations
from slicemgr.service.projects import projects
from slicemgr.service.slices import spares, specs
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

FORMATS = ("qcow2", "raw")
_SHORTEST_PREFIX = 8
_NO_STREAM = {"stream_sha256": "", "stream_size": 0, "stream_version": 0}


@dataclass(frozen=True, slots=True)
class Upload:
    """A spooled disk image: the sender's parameters, and the measured size and checksum."""

    name: str
    format: str
    sha256: str
    size: int
    project: str | None = None  # the owner; None: an image for all projects


def project_for(by: Principal, wanted: str | None) -> str | None:
    """The owner of a new image: the named project; else all projects for an admin, the only project for other users."""
    return None if by.admin and not wanted else access.project_for(by, wanted)


def check_upload(
    store: Store, name: str, format: str, by: Principal, project: str | None = None, size: int = 0
) -> None:
    """Refuse what can be refused before the file is sent. size: the announced number of bytes."""
    access.import_image(by, project)
    specs.image_name(name)
    if format not in FORMATS:
        raise invalid("format", f"{format[:40]!r} is unknown", " or ".join(FORMATS))
    with store.read() as c:
        incarnation.refuse_during_hold(c, "import images")
        if project is not None:
            projects.check_exists(c, project)
            room(c, project, size)
        _importing_node(c)


def _importing_node(c: Connection) -> str:
    """The node that imports images: the first whose agent uses the database itself, which may be the machine of the
    service; else the one that reported last, of those that others can probably reach, since they get the image there.

    A node is behind NAT if it announces an address that is not its own, or another than that from which it joined.
    Refused(UNAVAILABLE) if there is none.
    """
    n = t.nodes.c
    own = n.identity.is_not(None)  # false sorts first
    active = sa.and_(n.state == NodeState.ACTIVE, sa.or_(n.identity.is_(None), n.agent_seen_at.is_not(None)))
    recent = sa.case((n.identity.is_(None), None), else_=n.agent_seen_at)
    elsewhere = ~sa.exists().where(t.joins.c.node == n.name, t.joins.c.address == n.address)
    behind = sa.or_(elsewhere, sa.func.coalesce(n.facts["forwarded"].as_boolean(), False))
    found = c.scalar(sa.select(n.name).where(active).order_by(own, behind, recent.desc(), n.name).limit(1))
    if found is None:
        raise Refused(Code.UNAVAILABLE, "no node has a running agent", hint="start `slicemgr agent` on the node")
    return str(found)


def room(c: Connection, project: str, size: int) -> int | None:
    """Bytes of disk left to a project after `size` more; None: limited by the node alone. Raises OverQuota."""
    most, used = projects.limits(c, project), projects.used(c, project)
    hint = "delete unused images or slices, or ask an admin of the testbed for a larger quota"
    quota.check(most, used, quota.Amounts(disk=size), hint=hint)
    return None if most.disk is None else max(0, most.disk - used.disk - size)


def register_upload(
    store: Store, config: Config, upload: Upload, by: Principal, keep: Callable[[Path], None]
) -> tuple[str, str | None]:
    """Register a spooled image: its sha256 and the id of the operation that imports it, None if it is imported.

    keep: renames the spooled file to the given name; not called if the image is known. Refused(CONFLICT): the name is
    taken by another image, or this one is being deleted.
    """
    target = config.uploads_dir / f"{upload.sha256}.{upload.format}"
    with ExitStack() as undo:
        with store.write() as c:
            if _is_known(c, upload):
                return upload.sha256, _under_way(c, upload)
            operation = _insert(c, upload, target, by)
            undo.callback(target.unlink, missing_ok=True)
            keep(target)
        undo.pop_all()
    wake(config.wake_socket)
    return upload.sha256, operation


def _is_known(c: Connection, upload: Upload) -> bool:
    i = t.images.c
    known = c.execute(sa.select(i.state, i.project).where(i.sha256 == upload.sha256)).first()
    if known is not None and known.state == ImageState.DELETING:
        raise Refused(Code.CONFLICT, "this image is being deleted", hint="try again after it has been deleted")
    if known is not None and known.project not in (None, upload.project):
        hint = "ask an admin of the testbed to make it available to all projects"
        raise Refused(Code.CONFLICT, "another project already has the same disk image", hint=hint, field="file")
    if known is None and c.scalar(sa.select(i.name).where(i.name == upload.name)) is not None:
        message = f"there is already an image {upload.name!r}"
        raise Refused(Code.CONFLICT, message, hint="choose another name", field="name")
    return known is not None and known.state != ImageState.MISSING


def _under_way(c: Connection, upload: Upload) -> str | None:
    """The running import of this image with the same owner."""
    o = t.operations.c
    same = (o.kind == "image-import", o.image == upload.sha256, o.project == (upload.project or ""))
    importing = sa.select(o.id).where(*same, o.finished_at.is_(None))
    found: str | None = c.scalar(importing)
    return found


def _insert(c: Connection, upload: Upload, target: Path, by: Principal) -> str:
    now = utcnow()
    left = None if upload.project is None else room(c, upload.project, upload.size)
    again = t.images.update().where(t.images.c.sha256 == upload.sha256)  # the files of a restored row were lost
    fresh = {"file_size": upload.size, "format": upload.format, "state": ImageState.UPLOADED, **_NO_STREAM}
    if not c.execute(again.values(fresh)).rowcount:
        c.execute(
            t.images.insert().values(
                sha256=upload.sha256,
                name=upload.name,
                format=upload.format,
                virtual_size=0,
                file_size=upload.size,
                state=ImageState.UPLOADED,
                project=upload.project,
                created_at=now,
            )
        )
    whose = upload.project or ""
    subject = operations.Subject(_importing_node(c), image=upload.sha256, image_name=upload.name, project=whose)
    detail = f"{upload.name} ({upload.sha256})"
    operations.note(c, by.user, "image import", now, project=whose, detail=detail, address=by.address)
    params = {"format": upload.format, "upload": str(target), "most": left, "size": upload.size}
    return operations.add(c, "image-import", subject, by.user, now, params)


def find(c: Connection, wanted: str, by: Principal) -> Row[*tuple[Any, ...]]:
    """The image with this name, sha256 or beginning of its sha256. Refused(NOT_FOUND) or (CONFLICT)."""
    i = t.images.c
    columns = sa.select(i.sha256, i.name, i.state, i.project).where(visible(access.visible(by)))
    row = c.execute(columns.where(sa.or_(i.name == wanted, i.sha256 == wanted))).first()
    if row is not None:
        return row
    rows = []
    if len(wanted) >= _SHORTEST_PREFIX:
        rows = list(c.execute(columns.where(i.sha256.startswith(wanted, autoescape=True)).limit(2)).all())
    if not rows:
        raise access.missing("image", wanted)
    if len(rows) > 1:
        raise Refused(
            Code.CONFLICT, f"the sha256 of several images starts with {wanted}", hint="give more digits of the sha256"
        )
    return rows[0]


def visible(projects: Collection[str] | None) -> sa.ColumnElement[bool]:
    """Images for all and those of `projects`; None: all images."""
    if projects is None:
        return sa.true()
    return sa.or_(t.images.c.project.is_(None), t.images.c.project.in_(projects))


def publish(store: Store, wanted: str, by: Principal) -> str:
    """Make a project's image available to all projects; its sha256."""
    with store.write() as c:
        image = find(c, wanted, by)
        access.publish_image(by, image.project, wanted)
        c.execute(t.images.update().where(t.images.c.sha256 == image.sha256).values(project=None))
        detail = f"{image.name} ({image.sha256})"
        about = {"project": image.project or "", "address": by.address}
        operations.note(c, by.user, "image publish", utcnow(), detail=detail, **about)
    return str(image.sha256)


def delete(store: Store, config: Config, wanted: str, by: Principal) -> str:
    """Ask for an image to be deleted; the operation's id. Refused(CONFLICT) while a slice uses it."""
    with store.write() as c:
        image = find(c, wanted, by)
        access.delete_image(by, image.project, wanted)
        query = sa.select(t.slices.c.name).where(t.slices.c.image == image.sha256).order_by(t.slices.c.name)
        users = list(c.scalars(query.limit(6)))
        if users:
            shown = ", ".join(users[:5]) + (" and others" if len(users) > 5 else "")
            hint = f"delete the slices that use it first: {shown}"
            raise Refused(Code.CONFLICT, f"image {image.name} is in use", hint=hint)
        if image.state not in (ImageState.READY, ImageState.MISSING):
            doing = "already being deleted" if image.state == ImageState.DELETING else "still being imported"
            raise Refused(
                Code.CONFLICT, f"image {image.name} is {doing}", hint="show its progress with `slicectl op list`"
            )
        now = utcnow()
        spares.discard(c, t.spares.c.image == image.sha256, now)
        c.execute(t.images.update().where(t.images.c.sha256 == image.sha256).values(state=ImageState.DELETING))
        operation = _delete_everywhere(c, image, by, now)
        whose, detail = image.project or "", f"{image.name} ({image.sha256})"
        operations.note(c, by.user, "image delete", now, project=whose, detail=detail, address=by.address)
    for format in (*FORMATS, BASE):  # of a testbed whose service keeps them for its nodes
        (config.uploads_dir / f"{image.sha256}.{format}").unlink(missing_ok=True)
    wake(config.wake_socket)
    return operation


def _delete_everywhere(c: Connection, image: Row[*tuple[Any, ...]], by: Principal, now: datetime) -> str:
    """Operations that delete the files on each node that has some; the one that then deletes the row."""
    about = {"image": image.sha256, "image_name": image.name, "project": image.project or ""}
    first = _importing_node(c)
    x = t.image_nodes.c
    for node in c.scalars(sa.select(x.node).where(x.image == image.sha256, x.node != first).order_by(x.node)).all():
        operations.add(c, "image-drop", operations.Subject(node, **about), by.user, now)
    return operations.add(c, "image-delete", operations.Subject(first, **about), by.user, now)


def push(store: Store, config: Config, wanted: str, node: str, by: Principal) -> str:
    """Have an image on a node before a sliver needs it; the operation's id."""
    access.run_on_node(by, "image-push")
    now = utcnow()
    with store.write() as c:
        image, row = find(c, wanted, by), membership.find(c, node)
        if image.state != ImageState.READY:
            raise Refused(Code.CONFLICT, f"image {image.name} is not ready", hint="`slicectl image list`")
        if row.state != NodeState.ACTIVE:
            raise Refused(Code.CONFLICT, f"node {node} has no running agent", hint="`slicectl node list`")
        whose = image.project or ""
        subject = operations.Subject(node, image=image.sha256, image_name=image.name, project=whose)
        operation = operations.add(c, "image-push", subject, by.user, now)
        detail = f"{image.name} ({image.sha256}) to {node}"
        operations.note(c, by.user, "image push", now, project=whose, detail=detail, address=by.address)
    wake(config.wake_socket)
    return operation


def sweep_uploads(store: Store, config: Config) -> list[Path]:
    """Remove spooled files without an image that needs them (left by a process that was killed); the removed paths.

    Files of ready images are kept: without an agent on its machine, the service has them for the nodes.

    During the hold after a restore it removes nothing: a file may belong to an import that the rows lack.
    """
    with store.write() as c:
        if incarnation.held(c) is not None:
            return []
        i = t.images.c
        waiting = c.scalars(sa.select(i.sha256).where(i.state.in_((ImageState.UPLOADED, ImageState.READY))))
        kept = set(waiting)
        removed = [path for path in config.uploads_dir.glob("*") if path.name.partition(".")[0] not in kept]
        for path in removed:
            path.unlink(missing_ok=True)
    return removed

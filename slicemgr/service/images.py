"""Disk images on their way in and out. The files are the agent's; the web process only spools uploads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import ImageState
from slicemgr.policy.access import Principal, require
from slicemgr.service import nodes, operations, specs
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.store.wake import wake

FORMATS = ("qcow2", "raw")
_SHORTEST_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Upload:
    """A disk image as spooled: what its sender says of it, and what was counted on the way."""

    name: str
    format: str
    sha256: str
    size: int


def check_upload(store: Store, name: str, format: str, by: Principal) -> None:
    """Refuse what can be refused before the file is sent."""
    require(by, "import images")
    specs.image_name(name)
    if format not in FORMATS:
        raise invalid("format", f"{format[:40]!r} is unknown", " or ".join(FORMATS))
    with store.read() as c:
        nodes.choose(c, None)


def register_upload(
    store: Store, config: Config, upload: Upload, by: Principal, keep: Callable[[Path], None]
) -> tuple[str, str | None]:
    """Take a spooled image in: its sha256 and the id of the operation that imports it, None if it is imported.

    keep: gives the spooled file the name it is called with; not called if the image is known, imported or not yet.
    Refused(CONFLICT): the name is taken by another image, or this one is being deleted.
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
    known = c.execute(sa.select(t.images.c.state).where(t.images.c.sha256 == upload.sha256)).first()
    if known is not None and known.state == ImageState.DELETING:
        raise Refused(Code.CONFLICT, "this image is being deleted", hint="try again when it is gone")
    if known is None and c.scalar(sa.select(t.images.c.name).where(t.images.c.name == upload.name)) is not None:
        message = f"another image is called {upload.name!r} already"
        raise Refused(Code.CONFLICT, message, hint="choose another name", field="name")
    return known is not None


def _under_way(c: Connection, upload: Upload) -> str | None:
    """The import of this very image, if it has not ended."""
    o = t.operations.c
    same = (o.kind == "image-import", o.image == upload.sha256)
    importing = sa.select(o.id).where(*same, o.finished_at.is_(None))
    found: str | None = c.scalar(importing)
    return found


def _insert(c: Connection, upload: Upload, target: Path, by: Principal) -> str:
    now = utcnow()
    c.execute(
        t.images.insert().values(
            sha256=upload.sha256,
            name=upload.name,
            format=upload.format,
            virtual_size=0,
            file_size=upload.size,
            state=ImageState.UPLOADED,
            created_at=now,
        )
    )
    subject = operations.Subject(nodes.choose(c, None).name, image=upload.sha256, image_name=upload.name)
    operations.note(c, by.user, "image import", now, detail=f"{upload.name} ({upload.sha256})")
    params = {"format": upload.format, "upload": str(target)}
    return operations.add(c, "image-import", subject, by.user, now, params)


def find(c: Connection, wanted: str) -> Row[*tuple[Any, ...]]:
    """The image with this name, sha256 or beginning of its sha256. Refused(NOT_FOUND) or (CONFLICT)."""
    i = t.images.c
    columns = sa.select(i.sha256, i.name, i.state)
    row = c.execute(columns.where(sa.or_(i.name == wanted, i.sha256 == wanted))).first()
    if row is not None:
        return row
    rows = []
    if len(wanted) >= _SHORTEST_PREFIX:
        rows = list(c.execute(columns.where(i.sha256.startswith(wanted, autoescape=True)).limit(2)).all())
    if not rows:
        hint = "`slicectl image list` shows what there is"
        raise Refused(Code.NOT_FOUND, f"there is no image {wanted[:80]!r}", hint=hint)
    if len(rows) > 1:
        raise Refused(Code.CONFLICT, f"several images begin with {wanted}", hint="give more of the sha256")
    return rows[0]


def delete(store: Store, config: Config, wanted: str, by: Principal) -> str:
    """Ask for an image to be deleted; the operation's id. Refused(CONFLICT) while a slice uses it."""
    require(by, "delete images")
    with store.write() as c:
        image = find(c, wanted)
        query = sa.select(t.slices.c.name).where(t.slices.c.image == image.sha256).order_by(t.slices.c.name)
        users = list(c.scalars(query.limit(6)))
        if users:
            shown = ", ".join(users[:5]) + (" and others" if len(users) > 5 else "")
            hint = f"delete what is made of it first: {shown}"
            raise Refused(Code.CONFLICT, f"image {image.name} is in use", hint=hint)
        if image.state != ImageState.READY:
            doing = "being deleted already" if image.state == ImageState.DELETING else "still being imported"
            raise Refused(
                Code.CONFLICT, f"image {image.name} is {doing}", hint="`slicectl op list` shows how far it is"
            )
        now = utcnow()
        c.execute(t.images.update().where(t.images.c.sha256 == image.sha256).values(state=ImageState.DELETING))
        subject = operations.Subject(nodes.choose(c, None).name, image=image.sha256, image_name=image.name)
        operation = operations.add(c, "image-delete", subject, by.user, now)
        operations.note(c, by.user, "image delete", now, detail=f"{image.name} ({image.sha256})")
    wake(config.wake_socket)
    return operation


def sweep_uploads(store: Store, config: Config) -> list[Path]:
    """Remove spooled files that no import waits for (left by a process that was killed); what was removed."""
    with store.write() as c:
        waiting = c.scalars(sa.select(t.images.c.sha256).where(t.images.c.state == ImageState.UPLOADED))
        kept = set(waiting)
        removed = [path for path in config.uploads_dir.glob("*") if path.name.partition(".")[0] not in kept]
        for path in removed:
            path.unlink(missing_ok=True)
    return removed

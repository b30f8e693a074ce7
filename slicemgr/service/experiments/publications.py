"""Published experiments: reports that admins make available to the users of the testbed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import invalid
from slicemgr.policy import access, experiments
from slicemgr.policy.access import Principal
from slicemgr.service.accounts.authentication import new_id
from slicemgr.service.experiments import files as report_files
from slicemgr.service.nodes import operations
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

FIELDS = ("name", "note", "public")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters of a publication. name "": the title of the experiment. public: for all users, else for admins."""

    name: str = ""
    note: str = ""
    public: bool = True


@dataclass(frozen=True, slots=True)
class Archive:
    """The uploaded tar archive in the spool."""

    path: Path
    sha256: str


def wanted(raw: Mapping[str, Any], before: Wanted | None = None) -> Wanted:
    """The parameters in `raw`; `before` supplies the missing ones. Refused(INVALID) with the wrong field."""
    before = before or Wanted()
    name, note, public = before.name, before.note, raw.get("public", before.public)
    if "name" in raw:
        name = experiments.paragraph("name", raw["name"], experiments.LONGEST_NAME)
    if "note" in raw:
        note = experiments.paragraph("note", raw["note"], experiments.LONGEST_NOTE) if raw["note"] else ""
    if not isinstance(public, bool):
        raise invalid("public", "must be true or false")
    return Wanted(name, note, public)


def publish(store: Store, config: Config, archive: Archive, asked: Wanted, by: Principal) -> tuple[str, bool]:
    """Store the report of an archive; its id, and whether it is new. The same archive again is the same experiment.

    Refused(INVALID) with the name of the wrong file.
    """
    access.publish_experiment(by)
    with report_files.unpacked(config, archive.path) as (folder, files):
        run = experiments.read_run(*((folder / name).read_bytes() for name in (experiments.RUN, experiments.REPORT)))
        with ExitStack() as undo:
            with store.write() as c:
                e = t.experiments.c
                known = c.scalar(sa.select(e.id).where(e.sha256 == archive.sha256))
                if known is not None:
                    return str(known), False
                id_ = _insert(c, archive, asked, run, files, by)
                target = report_files.place(config, id_)
                undo.callback(report_files.remove, target)
                folder.rename(target)
            undo.pop_all()
    return id_, True


def _insert(
    c: Connection, archive: Archive, asked: Wanted, run: experiments.Run, files: report_files.Files, by: Principal
) -> str:
    id_, name = new_id(), asked.name or run.kind
    c.execute(
        t.experiments.insert().values(
            id=id_,
            name=name,
            kind=run.kind,
            node=run.node,
            summary=run.summary,
            note=asked.note,
            public=asked.public,
            started_at=run.started,
            published_at=utcnow(),
            published_by=by.user,
            size=sum(one["size"] for one in files),
            sha256=archive.sha256,
            files=files,
        )
    )
    _note(c, by, "publish", name, id_, "" if asked.public else "hidden")
    return id_


def find(c: Connection, id: str, by: Principal) -> Row[*tuple[Any, ...]]:
    """The row of an experiment that the user may see. Refused(NOT_FOUND)."""
    row = c.execute(sa.select(t.experiments).where(t.experiments.c.id == id)).first()
    if row is None:
        raise access.missing("experiment", id)
    access.see_experiment(by, row.public, id)
    return row


def change(store: Store, id: str, raw: Mapping[str, Any], by: Principal) -> None:
    """Change name, note or public: those that are given. Refused(INVALID) with the wrong field."""
    with store.write() as c:
        row = find(c, id, by)
        access.change_experiment(by, row.public, id)
        before = Wanted(row.name, row.note, row.public)
        after = wanted(raw, before)
        if after == before:
            return
        values = {field: getattr(after, field) for field in FIELDS}
        c.execute(t.experiments.update().where(t.experiments.c.id == id).values(**values))
        if after.public != before.public:
            _note(c, by, "show" if after.public else "hide", after.name, id)
        if (after.name, after.note) != (before.name, before.note):
            _note(c, by, "change", after.name, id)


def delete(store: Store, config: Config, id: str, by: Principal) -> None:
    """Delete the row, then the files."""
    with store.write() as c:
        row = find(c, id, by)
        access.change_experiment(by, row.public, id)
        c.execute(t.experiments.delete().where(t.experiments.c.id == id))
        _note(c, by, "delete", row.name, id)
    report_files.remove(report_files.place(config, id))


def _note(c: Connection, by: Principal, action: str, name: str, id: str, more: str = "") -> None:
    detail = f"{name} ({id})" + (f", {more}" if more else "")
    operations.note(c, by.user, f"experiment {action}", utcnow(), detail=detail, address=by.address)


def file(c: Connection, config: Config, id: str, name: str, by: Principal) -> Path:
    """The path of one file of an experiment. Refused(NOT_FOUND) if it does not have that file."""
    row = find(c, id, by)
    path = report_files.place(config, id) / name
    if name not in [one["name"] for one in row.files] or not path.is_file():
        raise access.missing("file", name)
    return path


def views(
    c: Connection,
    by: Principal,
    id: str | None = None,
    *,
    where: Sequence[sa.ColumnElement[bool]] = (),
    page: Page | None = None,
) -> list[Json]:
    """The experiments that the user may see, the newest first; or the one with this id."""
    e = t.experiments.c
    query = sa.select(t.experiments).where(*where)
    if not by.admin:
        query = query.where(e.public)
    if id is not None:
        query = query.where(e.id == id)
    found = paging.rows(c, query, page, By(e.published_at, down=True), By(e.id))
    if id is not None and not found:
        raise access.missing("experiment", id)
    return [_view(row) for row in found]


def _view(row: Row[*tuple[Any, ...]]) -> Json:
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "node": row.node or None,
        "summary": row.summary,
        "note": row.note or None,
        "public": row.public,
        "started_at": when(row.started_at),
        "published_at": when(row.published_at),
        "published_by": row.published_by,
        "size": row.size,
        "sha256": row.sha256,
        "files": [{**one, "type": experiments.media_type(one["name"])} for one in row.files],
    }


def sweep(store: Store, config: Config) -> list[Path]:
    """Remove files without a row; the removed paths. During the hold after a restore it removes nothing."""
    with store.write() as c:
        if incarnation.held(c) is not None:
            return []
        return report_files.sweep(config, set(c.scalars(sa.select(t.experiments.c.id))))

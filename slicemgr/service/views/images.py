"""Images as the JSON of the REST API."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.service.nodes import images as image_service
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, Where, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t


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
            "systemd": row.systemd,
            "created_at": when(row.created_at),
            "used_by": row.used_by,
            "project": row.project,
        }
        for row in paging.rows(c, query, page, By(i.name))
    ]

"""Images as the JSON of the REST API."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.errors import Code, Refused
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
    i, l, k = t.images.c, t.slices.c, t.kernel_configs.c
    used = sa.select(sa.func.count()).where(l.image == i.sha256).scalar_subquery().label("used_by")
    config = sa.func.coalesce(k.size, 0).label("kernel_config")
    query = sa.select(t.images, used, config).outerjoin(t.kernel_configs, k.image == i.sha256)
    query = query.where(image_service.visible(projects), *where)
    if sha256 is not None:
        query = query.where(i.sha256 == sha256)
    fields = ("name", "sha256", "format", "virtual_size", "file_size", "arch", "os", "state")
    return [
        {
            **{name: getattr(row, name) for name in fields},
            "boot": row.boot,
            "systemd": row.systemd,
            "kernel_config": row.kernel_config,
            "created_at": when(row.created_at),
            "used_by": row.used_by,
            "project": row.project,
        }
        for row in paging.rows(c, query, page, By(i.name))
    ]


def kernel_config(c: Connection, sha256: str, name: str) -> str:
    """The configuration of an image's kernel, printable text. Raises Refused if none is known."""
    k = t.kernel_configs.c
    found = c.scalar(sa.select(k.config).where(k.image == sha256))
    if not found:
        raise Refused(Code.NOT_FOUND, f"the configuration of the kernel of image {name} is not known")
    return str(found)


def is_there(c: Connection, name: str | None) -> bool:
    """Whether there is an image of this name: that of an operation may have been deleted."""
    return bool(c.scalar(sa.select(sa.exists().where(t.images.c.name == name))))


def on_nodes(c: Connection, sha256: str) -> list[Json]:
    """What each node has of an image, by the name of the node. Nodes that have nothing of it are not among them."""
    x, n = t.image_nodes.c, t.nodes.c
    query = sa.select(t.image_nodes, n.site).join(t.nodes, n.name == x.node).where(x.image == sha256)
    return [{"node": row.node, "site": row.site, **_state(row)} for row in c.execute(query.order_by(x.node))]


def of_node(c: Connection, node: str) -> list[Json]:
    """What a node has of each image, by the name of the image."""
    x, i = t.image_nodes.c, t.images.c
    query = sa.select(t.image_nodes, i.name, i.project).join(t.images, i.sha256 == x.image).where(x.node == node)
    return [{"name": row.name, "project": row.project, **_state(row)} for row in c.execute(query.order_by(i.name))]


def _state(row: Row[*tuple[Any, ...]]) -> Json:
    fields = ("state", "error", "base_size", "disk", "base")
    return {**{name: getattr(row, name) for name in fields}, "updated_at": when(row.updated_at)}

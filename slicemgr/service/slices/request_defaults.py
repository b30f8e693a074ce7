"""What a request for a slice need not state: its name and its image."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import names
from slicemgr.config import Config
from slicemgr.model import ImageState, RequestState, SliverType
from slicemgr.store import tables as t

_I = t.images.c
_READY = (  # made once: to make it takes longer than to execute it
    sa.select(_I.name, _I.arch, _I.boot)
    .where(sa.or_(_I.project.is_(None), _I.project == sa.bindparam("project")), _I.state == ImageState.READY)
    .order_by(_I.name)
)
_SUFFIX = 4  # characters of a generated name after the type: a million names, and taken ones are skipped
_MOST_NAMED = 5  # images in a hint


def complete(c: Connection, config: Config, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body, which has its project, completed with a name and an image."""
    made, project, sliver_type = dict(body), body["project"], body.get("type")
    if sliver_type not in tuple(SliverType):
        return made  # the error about the type is enough
    if made.get("name") is None:
        made["name"] = _free_name(c, project, SliverType(sliver_type))
    if made.get("image") is None and (image := _image(c, config, project, SliverType(sliver_type))):
        made["image"] = image
    return made


def hints(c: Connection, body: Mapping[str, Any]) -> dict[str, str]:
    """What to write instead of a missing image."""
    if body.get("image") is not None:
        return {}
    sliver_type = body.get("type")
    ready = _ready(c, body["project"], SliverType(str(sliver_type))) if sliver_type in tuple(SliverType) else []
    if not ready:
        return {"image": "there is no ready image for it; import one with `slicectl image import`"}
    more = ", …" if len(ready) > _MOST_NAMED else ""
    return {"image": f"one of {', '.join(ready[:_MOST_NAMED])}{more}; an admin sets the default as limits.image"}


def _image(c: Connection, config: Config, project: str, sliver_type: SliverType) -> str:
    """The testbed's default image, otherwise the only ready one; "": neither."""
    if config.limits.image:
        return config.limits.image
    ready = _ready(c, project, sliver_type)
    return ready[0] if len(ready) == 1 else ""


def _ready(c: Connection, project: str, sliver_type: SliverType) -> list[str]:
    """The images that slices of the project and the type can use, by name."""
    rows = c.execute(_READY, {"project": project})
    return [row.name for row in rows if (row.arch if sliver_type is SliverType.LXC else row.boot)]


def _free_name(c: Connection, project: str, sliver_type: SliverType) -> str:
    """A name such as `lxc-k3x9` that neither a slice nor a waiting request of the project has."""
    s, q = t.slices.c, t.requests.c
    while True:
        name = f"{sliver_type.value}-{''.join(secrets.choice(names.ALPHABET) for _ in range(_SUFFIX))}"
        slices = sa.select(s.id).where(s.project == project, s.name == name)
        waiting = sa.select(q.id).where(q.project == project, q.name == name, q.state == RequestState.WAITING)
        if c.scalar(slices) is None and c.scalar(waiting) is None:
            return name

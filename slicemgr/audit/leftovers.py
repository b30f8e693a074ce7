"""Takes away what audits made, also those that were killed: projects by their names, and all that is in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from slicemgr.client import Client
from slicemgr.errors import Failed, Refused

Named = Callable[[str], bool]
Found = list[dict[str, Any]]
_PAUSE = 0.2  # seconds between two looks at what is being deleted


def clean(
    admin: Client,
    project: Named,
    patience: float = 600.0,
    *,
    image: Named = lambda _: False,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """The projects that were there and are gone, with their slices and images. Failed if something does not go.

    project, image: whether a name is an audit's; an image is also one by its project. patience: seconds for each kind
    of thing. say: called with a sentence about each slice.
    """
    projects = [one["name"] for one in admin.projects.list() if project(one["name"])]
    for name in projects:
        with in_project(admin, name):
            for one in (found := _slices(admin)):
                say(f"deleting the slice {name}/{one['name']}")
            if found:
                _drop(patience, lambda: _slices(admin), lambda one: admin.slices.delete(one["name"]))

    def images() -> Found:
        return [dict(one) for one in admin.images.list() if one.get("project") in projects or image(one["name"])]

    _drop(patience, images, lambda one: admin.images.delete(one["sha256"]))
    for name in projects:
        admin.projects.delete(name)
    return projects


def _slices(client: Client) -> Found:
    """Those of the client's project."""
    return [dict(one) for one in client.slices.list()]


@contextmanager
def in_project(client: Client, name: str) -> Iterator[None]:
    """Meanwhile the client's slices are those of the project."""
    before, client.project = client.project, name
    try:
        yield
    finally:
        client.project = before


def _drop(patience: float, look: Callable[[], Found], delete: Callable[[dict[str, Any]], object]) -> None:
    """Delete until nothing is found. What cannot go yet is asked for again: a slice that was cloned, for one."""
    end = time.monotonic() + patience
    while found := look():
        if time.monotonic() > end:
            left = ", ".join(one["name"] for one in found)
            raise Failed(f"{left} of the audit cannot be deleted", hint="`slicectl gc` and `slicectl doctor` say more")
        for one in found:
            if one["state"] != "deleting":
                with suppress(Refused):
                    delete(one)
        time.sleep(_PAUSE)

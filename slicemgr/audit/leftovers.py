"""Deletes the projects of audits, found by their names, and all objects in them, also after a killed audit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from slicemgr.client import Client
from slicemgr.client.slices import Slices
from slicemgr.errors import Failed, Refused

Named = Callable[[str], bool]
Found = list[dict[str, Any]]
_PAUSE = 0.2  # seconds between two queries for objects that are being deleted


def clean(
    admin: Client,
    project: Named,
    patience: float = 600.0,
    *,
    image: Named = lambda _: False,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Delete the projects of audits with their slices and images. Returns the names of the projects.

    project, image: whether a name is that of an audit; images in such projects are deleted, too. patience: seconds for
    each kind of object. say: called with a sentence about each slice. Raises Failed if an object cannot be deleted.
    """
    projects = [one["name"] for one in admin.projects.list() if project(one["name"])]
    for name in projects:
        slices = admin.of_project(name).slices
        for one in (found := slices.list()):
            say(f"deleting the slice {name}/{one['name']}")
        if found:
            _drop(patience, partial(_found, slices), partial(_delete, slices))

    def images() -> Found:
        return [dict(one) for one in admin.images.list() if one.get("project") in projects or image(one["name"])]

    _drop(patience, images, lambda one: admin.images.delete(one["sha256"]))
    for name in projects:
        admin.projects.delete(name)
    return projects


def _found(slices: Slices) -> Found:
    return [dict(one) for one in slices.list()]


def _delete(slices: Slices, one: dict[str, Any]) -> object:
    return slices.delete(one["name"])


def _drop(patience: float, look: Callable[[], Found], delete: Callable[[dict[str, Any]], object]) -> None:
    """Delete until no object is found, with retries for objects in use, such as a slice that was cloned."""
    end = time.monotonic() + patience
    while found := look():
        if time.monotonic() > end:
            left = ", ".join(one["name"] for one in found)
            raise Failed(f"{left} of the audit cannot be deleted", hint="see `slicectl gc` and `slicectl doctor`")
        for one in found:
            if one["state"] != "deleting":
                with suppress(Refused):
                    delete(one)
        time.sleep(_PAUSE)

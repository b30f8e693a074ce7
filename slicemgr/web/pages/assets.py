"""The files below `static/`: their URLs carry a hash of them all, so that browsers may keep them for good."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from flask import Blueprint, Response, send_from_directory, url_for

FOLDER = Path(__file__).parent.parent / "static"
_FOR_GOOD = 365 * 86400  # seconds

blueprint = Blueprint("assets", __name__)


@functools.cache
def digest() -> str:
    """Of all files: one URL prefix for all, so that modules find one another by relative names."""
    found = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(FOLDER)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def url(name: str) -> str:
    """The URL of a file, by its path below `static/`."""
    return url_for("assets.file", version=digest(), name=name)


@blueprint.route("/static/<version>/<path:name>")
def file(version: str, name: str) -> Response:
    """One file. A page of an older version gets the file of today, but may not keep it."""
    fresh = version == digest()
    response = send_from_directory(FOLDER, name, max_age=_FOR_GOOD if fresh else 0)
    if fresh:
        response.cache_control.public = True
        response.cache_control.immutable = True
    return response

"""The files below `static/`: their URLs contain a hash of all files, so that browsers may cache them without limit.

Texts are compressed for browsers that accept it. Pages are not: compression would reveal secrets in them by length.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import mimetypes
from pathlib import Path

from flask import Blueprint, Response, request, send_from_directory, url_for

FOLDER = Path(__file__).parent.parent / "static"
_FOR_GOOD = 365 * 86400  # seconds
_TEXTS = ("text/", "application/javascript", "image/svg+xml")
_WORTH = 1024  # bytes; a smaller file is one packet anyway

blueprint = Blueprint("assets", __name__)


@functools.cache
def digest() -> str:
    """The hash of all files: one prefix for all, so that modules find one another by relative names."""
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
    """One file. A page of an older version gets the current file, but must not cache it."""
    fresh = version == digest()
    takes = request.accept_encodings.quality("gzip") > 0
    kind = _texts().get(name)
    if kind and takes:
        response = Response(packed(name), mimetype=kind)
        response.content_encoding = "gzip"
        response.set_etag(f"{digest()}-{hashlib.sha256(packed(name)).hexdigest()[:16]}")
        response.make_conditional(request)
    else:
        response = send_from_directory(FOLDER, name)
    if kind:
        response.vary.add("Accept-Encoding")
    if fresh:
        response.cache_control.no_cache = None
        response.cache_control.max_age = _FOR_GOOD
        response.cache_control.public = True
        response.cache_control.immutable = True
    else:
        response.cache_control.no_cache = True
    return response


@functools.cache
def _texts() -> dict[str, str]:
    """The type of each text that is worth compressing, by its path below `static/`."""
    worth = [one for one in FOLDER.rglob("*") if one.is_file() and one.stat().st_size > _WORTH]
    kinds = {str(one.relative_to(FOLDER)): mimetypes.guess_type(one.name)[0] or "" for one in worth}
    return {name: kind for name, kind in kinds.items() if kind.startswith(_TEXTS)}


@functools.cache
def packed(name: str) -> bytes:
    """The gzip of one of `_texts`, compressed at the first request."""
    return gzip.compress((FOLDER / name).read_bytes(), mtime=0)

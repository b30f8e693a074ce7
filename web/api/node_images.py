"""Disk images for nodes, which have no user: a node signs a token for each image (`certificates.image_tokens`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.certificates import image_tokens
from slicemgr.errors import Code, Refused, invalid
from slicemgr.service.nodes import image_files
from slicemgr.store.updates import utcnow
from slicemgr.web import schemas
from slicemgr.web.state import state
from slicemgr.web.thread_limits import Kind

routes = Blueprint("node_images", __name__, url_prefix="/api/v1/node-images", description="Disk images for nodes")

_CHUNK = 1 << 18
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}, "example": "the file"}}


@routes.route("/<sha256>", methods=["GET"])
@routes.doc(
    parameters=[
        {"in": "header", "name": "Authorization", "schema": {"type": "string"}, "description": "Node TOKEN"},
        {"in": "header", "name": "Range", "schema": {"type": "string"}, "description": "bytes=FIRST-"},
    ],
    responses={
        200: {"description": "the file", "content": _FILE},
        206: {"description": "the rest of the file", "content": _FILE},
    },
)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
@routes.alt_response(503, schema=schemas.Problem)
def fetch_image(sha256: str) -> Response:
    """Fetch the file of an image that the slivers of a node need. Nodes use this with a token that they sign."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme != image_tokens.SCHEME or not token:
        hint = f"a node sends `Authorization: {image_tokens.SCHEME} TOKEN`"
        raise Refused(Code.UNAUTHENTICATED, "the token of a node is required", hint=hint)
    granted = image_files.judge(state().store, token, sha256, utcnow())
    first = _first(granted.size)
    with ExitStack() as undo:
        undo.callback(state().thread_limits.acquire(Kind.DOWNLOAD, granted.node))
        file = undo.enter_context(image_files.open_file(state().config, granted, token))
        file.seek(first)
        held = undo.pop_all()
    response = Response(_chunks(file, held), 206 if first else 200, mimetype="application/octet-stream")
    response.call_on_close(held.close)
    response.content_length = granted.size - first
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["Cache-Control"] = "no-store"
    if first:
        response.headers["Content-Range"] = f"bytes {first}-{granted.size - 1}/{granted.size}"
    return response


def _first(size: int) -> int:
    """The first byte of the request; 0 without a range. Refused(INVALID) for a range of another form."""
    if "Range" not in request.headers:
        return 0
    ranges = request.range.ranges if request.range is not None and request.range.units == "bytes" else []
    if len(ranges) != 1 or ranges[0][1] is not None or not 0 <= ranges[0][0] < size:
        raise invalid("Range", "is not a rest of the file", f"bytes=FIRST- with FIRST below {size}")
    return ranges[0][0]


def _chunks(file: BinaryIO, held: ExitStack) -> Iterator[bytes]:
    """The rest of the file. held: is closed at the end, also if the server does not close the response."""
    with held:
        while chunk := file.read(_CHUNK):
            yield chunk

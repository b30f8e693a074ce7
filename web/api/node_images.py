"""Disk images for nodes, which have no user: a node signs a token for each image (`certificates.image_tokens`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.certificates import image_tokens
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.policy import image_blocks
from slicemgr.service.nodes import image_files, image_hashes
from slicemgr.service.views.formats import Json
from slicemgr.store.updates import utcnow
from slicemgr.web import schemas, schemas_nodes, spool
from slicemgr.web.image_traffic import ImageTraffic
from slicemgr.web.state import state
from slicemgr.web.thread_limits import Kind

routes = Blueprint("node_images", __name__, url_prefix="/api/v1/node-images", description="Disk images for nodes")

_CHUNK = 1 << 18
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}, "example": "the file"}}
_FILES = {
    200: {"description": "the file", "content": _FILE},
    206: {"description": "a part of the file", "content": _FILE},
}
_PARAMETERS = [
    {"in": "header", "name": "Authorization", "schema": {"type": "string"}, "description": "Node TOKEN"},
    {
        "in": "header",
        "name": "Range",
        "schema": {"type": "string"},
        "description": "bytes=FIRST-LAST or bytes=FIRST-",
    },
]


@routes.route("/<sha256>", methods=["GET"])
@routes.doc(parameters=_PARAMETERS, responses=_FILES)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
@routes.alt_response(503, schema=schemas.Problem)
def fetch_image(sha256: str) -> Response:
    """Fetch the file of an image that the slivers of a node need. Nodes use this with a token that they sign."""
    return _file(*_granted(sha256))


def _file(token: str, granted: image_files.Granted) -> Response:
    first, end = _range(granted.size)
    with ExitStack() as undo:
        undo.callback(state().thread_limits.acquire(Kind.DOWNLOAD, granted.node))
        file = undo.enter_context(image_files.open_file(state().config, granted, token))
        file.seek(first)
        held = undo.pop_all()
    part = end - first < granted.size
    response = Response(
        _chunks(file, held, end - first, state().image_traffic),
        206 if part else 200,
        mimetype="application/octet-stream",
    )
    response.call_on_close(held.close)
    response.content_length = end - first
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["Cache-Control"] = "no-store"
    if part:
        response.headers["Content-Range"] = f"bytes {first}-{end - 1}/{granted.size}"
    return response


@routes.route("/<sha256>/blocks", methods=["GET"])
@routes.doc(parameters=_PARAMETERS[:1])
@routes.alt_response(200, schema=schemas_nodes.ImageBlocks)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(503, schema=schemas.Problem)
def image_block_hashes(sha256: str) -> Json:
    """Get the hashes of the blocks of an image, with which a node checks what other nodes send to it."""
    return _hashes(*_granted(sha256))


@routes.route("/<sha256>/base", methods=["GET"])
@routes.doc(parameters=_PARAMETERS, responses=_FILES)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
@routes.alt_response(503, schema=schemas.Problem)
def fetch_base(sha256: str) -> Response:
    """Fetch the stream of the base of an image, which a node receives so that it need not extract the disk image."""
    return _file(*_granted(sha256, base=True))


@routes.route("/<sha256>/base/blocks", methods=["GET"])
@routes.doc(parameters=_PARAMETERS[:1])
@routes.alt_response(200, schema=schemas_nodes.ImageBlocks)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(503, schema=schemas.Problem)
def base_block_hashes(sha256: str) -> Json:
    """Get the hashes of the blocks of the stream of a base."""
    return _hashes(*_granted(sha256, base=True))


@routes.route("/<sha256>/base", methods=["PUT"])
@routes.doc(
    parameters=[
        *_PARAMETERS[:1],
        {
            "in": "query",
            "name": "version",
            "required": True,
            "schema": {"type": "integer"},
            "description": "of the extraction",
        },
    ],
    requestBody={"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
)
@routes.alt_response(204, description="the service has it")
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def send_base(sha256: str) -> Response:
    """Send the stream of the base of an image. Only the node that imports the image may do this, once."""
    config, store = state().config, state().store
    text = request.args.get("version", "")
    version = int(text) if re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) else 0
    sent = image_files.judge_stream(store, _token(), sha256, version, utcnow())
    with state().thread_limits.held(Kind.DOWNLOAD, sent.node), spool.body(config, sent.most) as received:
        image_files.record_stream(store, config, sent, received.sha256, received.size, received.keep)
    wake(config.wake_socket)
    return Response(status=204)


def _hashes(token: str, granted: image_files.Granted) -> Json:
    with ExitStack() as held:
        held.callback(state().thread_limits.acquire(Kind.DOWNLOAD, granted.node))
        file = held.enter_context(image_files.open_file(state().config, granted, token))
        return {"size": image_blocks.SIZE, "blocks": image_hashes.of(granted.file, file)}


def _granted(sha256: str, *, base: bool = False) -> tuple[str, image_files.Granted]:
    """The token of the request, and the file that it gives a right to. Refused."""
    token = _token()
    return token, image_files.judge(state().store, token, sha256, utcnow(), base=base)


def _token() -> str:
    """The token of the request. Refused(UNAUTHENTICATED)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme != image_tokens.SCHEME or not token:
        hint = f"a node sends `Authorization: {image_tokens.SCHEME} TOKEN`"
        raise Refused(Code.UNAUTHENTICATED, "the token of a node is required", hint=hint)
    return token


def _range(size: int) -> tuple[int, int]:
    """The first byte of the request and the one after its last. Refused(INVALID) for a range of another form."""
    if "Range" not in request.headers:
        return 0, size
    ranges = request.range.ranges if request.range is not None and request.range.units == "bytes" else []
    if len(ranges) != 1 or not 0 <= ranges[0][0] < (ranges[0][1] or size) <= size:
        raise invalid("Range", "is not a part of the file", f"bytes=FIRST-LAST with both below {size}, or bytes=FIRST-")
    return ranges[0][0], ranges[0][1] or size


def _chunks(file: BinaryIO, held: ExitStack, left: int, traffic: ImageTraffic) -> Iterator[bytes]:
    """The next bytes of the file. held: is closed at the end, also if the server does not close the response."""
    with held:
        while left and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
            traffic.add(len(chunk))

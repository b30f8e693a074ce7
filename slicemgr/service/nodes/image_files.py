"""The disk images and the streams of bases that nodes fetch: who may, and the file; and streams that a node sends.

The node that imports an image, whose findings the service trusts, may send the stream of its base, once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.certificates import image_tokens
from slicemgr.certificates.image_tokens import Token
from slicemgr.config import Config
from slicemgr.errors import Code, Failed, Refused, invalid
from slicemgr.ipc import image_socket
from slicemgr.model import ImageState, NodeState, OperationState
from slicemgr.policy.image_blocks import BASE
from slicemgr.service.nodes import membership
from slicemgr.store import Store
from slicemgr.store import tables as t

_MOST_FOR_FILES, _ROOM = 2, 64 << 20  # a stream has at most twice the bytes of the files, and so many more
_MOST_VERSION = 1 << 20
_SERVED = (ImageState.UPLOADED, ImageState.READY)  # the former for the node that imports it


@dataclass(frozen=True, slots=True)
class Granted:
    """A file of an image that a node may fetch. size: in bytes. file: its sha256, which of a stream is another one."""

    node: str
    sha256: str
    format: str
    size: int
    file: str


def judge(store: Store, text: str, sha256: str, now: datetime, *, base: bool = False) -> Granted:
    """The image `sha256`, if the token is for it and its node needs it. Refused(DENIED) otherwise.

    A node needs the images of its slivers, and those of its operations that have not ended. base: the stream of its
    base; Refused(NOT_FOUND) if it has none.
    """
    i = t.images.c
    with store.read() as c:
        node = _node(c, text, sha256, now)
        query = sa.select(i.format, i.file_size, i.stream_sha256, i.stream_size)
        row = c.execute(query.where(i.sha256 == sha256, i.state.in_(_SERVED))).first()
    if row is None:
        raise image_tokens.void()
    if not base:
        return Granted(node, sha256, row.format, row.file_size, sha256)
    if not row.stream_sha256:
        raise Refused(Code.NOT_FOUND, "no node has sent the base of this image")
    return Granted(node, sha256, BASE, row.stream_size, row.stream_sha256)


def _node(c: Connection, text: str, sha256: str, now: datetime) -> str:
    """The node that signed the token and needs the image. Refused(DENIED)."""
    token, n = image_tokens.parse(text), t.nodes.c
    if token.sha256 != sha256 or not image_tokens.is_current(token, now):
        raise image_tokens.void()
    node = c.scalar(sa.select(n.name).where(n.identity == token.identity, n.state != NodeState.ADDED))
    if node is None or not _signed(c, token, now) or not c.scalar(sa.select(needs(node, sha256))):
        raise image_tokens.void()
    return str(node)


def _signed(c: Connection, token: Token, now: datetime) -> bool:
    """Whether the token is signed with the key of a certificate of its node that is valid."""
    return any(image_tokens.is_signed(token, one) for one in membership.certificates(c, token.identity, now))


def needs(node: str | sa.Column[Any], image: str | sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a node needs an image: for one of its slivers, or for one of its operations that have not ended."""
    s, l, o, p, r = t.slivers.c, t.slices.c, t.operations.c, t.operation_parts.c, t.spares.c
    of_sliver = sa.exists().where(s.node == node, s.slice == l.id, l.image == image)
    of_spare = sa.exists().where(s.node == node, s.id == r.sliver, r.image == image)
    unended = p.state.in_((OperationState.QUEUED, OperationState.RUNNING))
    of_operation = sa.exists().where(p.node == node, p.operation == o.id, o.image == image, unended)
    return sa.or_(of_sliver, of_spare, of_operation)


@dataclass(frozen=True, slots=True)
class Sent:
    """A stream that a node sends. version: of the extraction. most: bytes."""

    node: str
    image: str
    version: int
    most: int


def judge_stream(store: Store, text: str, sha256: str, version: int, now: datetime) -> Sent:
    """What a node may send as the stream of the base of an image.

    Refused(DENIED): it does not import the image now. Refused(CONFLICT): the image has a stream. Failed(UNAVAILABLE):
    the findings of the import are not recorded yet.
    """
    if not 0 < version <= _MOST_VERSION:
        raise invalid("version", f"{version} is not a version of the extraction", f"1 to {_MOST_VERSION}")
    with store.read() as c:
        node = _node(c, text, sha256, now)
        return Sent(node, sha256, version, _most(c, node, sha256))


def _most(c: Connection, node: str, sha256: str) -> int:
    """The largest size of the stream that a node may send now, in bytes. Refused."""
    i, o, p = t.images.c, t.operations.c, t.operation_parts.c
    unended = p.state.in_((OperationState.QUEUED, OperationState.RUNNING))
    imports = sa.exists().where(
        p.node == node, p.operation == o.id, o.kind == "image-import", o.image == sha256, unended
    )
    if not c.scalar(sa.select(imports)):
        raise Refused(Code.DENIED, "only the node that imports an image sends its base")
    row = c.execute(sa.select(i.stream_sha256, i.base_size, i.state).where(i.sha256 == sha256)).first()
    if row is None or row.stream_sha256:
        raise Refused(Code.CONFLICT, "the service has the base of this image already, or no row of the image")
    if row.state != ImageState.READY or not row.base_size:
        raise Failed("the findings of the import have not arrived yet", code=Code.UNAVAILABLE)
    return int(row.base_size) * _MOST_FOR_FILES + _ROOM


def record_stream(
    store: Store, config: Config, sent: Sent, sha256: str, size: int, keep: Callable[[Path], None]
) -> None:
    """Keep the stream of a base, the first one of an image. sha256, size: of the received file. Refused as before.

    keep: renames the file to the given name.
    """
    target = config.uploads_dir / f"{sent.image}.{BASE}"
    with ExitStack() as undo:
        with store.write() as c:
            if size > _most(c, sent.node, sent.image):
                raise invalid("file", f"has {size} bytes", "the base of this image is smaller")
            undo.callback(target.unlink, missing_ok=True)
            keep(target)
            row = {"stream_sha256": sha256, "stream_size": size, "stream_version": sent.version}
            c.execute(t.images.update().where(t.images.c.sha256 == sent.image).values(row))
        undo.pop_all()


def open_file(config: Config, granted: Granted, token: str) -> BinaryIO:
    """The file of an image. Failed(UNAVAILABLE) if the service does not have it, or has another one.

    An agent beside the service has taken over the uploaded file and opens it for the token; else the upload is there.
    """
    path = config.uploads_dir / f"{granted.sha256}.{granted.format}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = image_socket.ask(config.image_socket, token, granted.sha256, base=granted.format == BASE)
    except OSError as error:
        raise _lost(granted) from error
    file = os.fdopen(descriptor, "rb")
    held = os.fstat(file.fileno())
    if not stat.S_ISREG(held.st_mode) or held.st_size != granted.size:
        file.close()
        raise _lost(granted)
    return file


def _lost(granted: Granted) -> Failed:
    message = f"the service does not have the file of image {granted.sha256[:12]}"
    return Failed(message, hint="import the image again", code=Code.UNAVAILABLE)

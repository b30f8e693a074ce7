"""The disk images that nodes fetch: who may, and the file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.certificates import image_tokens
from slicemgr.certificates.image_tokens import Token
from slicemgr.config import Config
from slicemgr.errors import Code, Failed
from slicemgr.ipc import image_socket
from slicemgr.model import ImageState, NodeState, OperationState
from slicemgr.service.nodes import membership
from slicemgr.store import Store
from slicemgr.store import tables as t

_SERVED = (ImageState.UPLOADED, ImageState.READY)  # the former for the node that imports it


@dataclass(frozen=True, slots=True)
class Granted:
    """An image that a node may fetch. size: of its file, in bytes."""

    node: str
    sha256: str
    format: str
    size: int


def judge(store: Store, text: str, sha256: str, now: datetime) -> Granted:
    """The image `sha256`, if the token is for it and its node needs it. Refused(DENIED) otherwise.

    A node needs the images of its slivers, and those of its operations that have not ended.
    """
    token = image_tokens.parse(text)
    if token.sha256 != sha256 or not image_tokens.is_current(token, now):
        raise image_tokens.void()
    with store.read() as c:
        n, i = t.nodes.c, t.images.c
        node = c.scalar(sa.select(n.name).where(n.identity == token.identity, n.state != NodeState.ADDED))
        if node is None or not _signed(c, token, now) or not c.scalar(sa.select(needs(node, sha256))):
            raise image_tokens.void()
        query = sa.select(i.format, i.file_size).where(i.sha256 == sha256, i.state.in_(_SERVED))
        row = c.execute(query).first()
    if row is None:
        raise image_tokens.void()
    return Granted(node, sha256, row.format, row.file_size)


def _signed(c: Connection, token: Token, now: datetime) -> bool:
    """Whether the token is signed with the key of a certificate of its node that is valid."""
    return any(image_tokens.is_signed(token, one) for one in membership.certificates(c, token.identity, now))


def needs(node: str | sa.Column[Any], image: str | sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a node needs an image: for one of its slivers, or for one of its operations that have not ended."""
    s, l, o, p = t.slivers.c, t.slices.c, t.operations.c, t.operation_parts.c
    of_sliver = sa.exists().where(s.node == node, s.slice == l.id, l.image == image)
    unended = p.state.in_((OperationState.QUEUED, OperationState.RUNNING))
    of_operation = sa.exists().where(p.node == node, p.operation == o.id, o.image == image, unended)
    return sa.or_(of_sliver, of_operation)


def open_file(config: Config, granted: Granted, token: str) -> BinaryIO:
    """The file of an image. Failed(UNAVAILABLE) if the service does not have it, or has another one.

    An agent beside the service has taken over the uploaded file and opens it for the token; else the upload is there.
    """
    path = config.uploads_dir / f"{granted.sha256}.{granted.format}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = image_socket.ask(config.image_socket, token, granted.sha256)
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

"""Name to each node those that exchange an image with it: while a node fetches one, all that have it or fetch it.

An order is repeated and valid for a short time only, so a lost one costs seconds, and nodes end the exchange by
themselves. Only nodes that announce a port in their facts get orders: those of an earlier version do not. An image has
two files: the disk image, and the stream of its base.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import ImageState, NodeImageState, NodeState
from slicemgr.policy import messages
from slicemgr.policy.image_blocks import BASE, Peer, Shared
from slicemgr.service.nodes import image_files
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_LOOK = 1.0  # seconds between two readings of the rows
_REPEAT = 10.0  # seconds after which an order is repeated
_ALIVE = timedelta(seconds=30)  # since the last heartbeat
_LONGEST = timedelta(hours=6)  # since a node reported that it fetches
_TOGETHER = 50  # nodes that share out the blocks of an image; more form further groups
_COMPLETE = 12  # nodes with the whole image that are named to a group
_MOST_IMAGES = 4  # that one node exchanges at once

Publish = Callable[[str, str], object]  # to an identity


class ImagePeers:
    """publish: sends an order that is of no use later. clock: seconds."""

    def __init__(self, store: Store, publish: Publish, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._publish, self._clock = store, publish, clock
        self._looked_at = -_LOOK
        self._sent: dict[str, tuple[str, float]] = {}  # by identity: the last order, and when

    def step(self, *, woken: bool = False) -> None:
        """Send what is due. woken: rows may have changed."""
        now = self._clock()
        if not woken and now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        with self._store.read() as c:
            named = orders(c)
        for identity, images in named.items():
            body = messages.peers(images[:_MOST_IMAGES])
            last, at = self._sent.get(identity, ("", 0.0))
            if body != last or now - at >= _REPEAT:
                self._publish(identity, body)
                self._sent[identity] = (body, now)
        for identity in self._sent.keys() - named.keys():
            del self._sent[identity]


def orders(c: Connection) -> dict[str, list[Shared]]:
    """By identity: the files that each node exchanges now. Images that are being deleted are not among them.

    A node that reports to fetch an image is named only if it needs it: those that are named get it from the others.
    """
    i, m = t.images.c, t.image_nodes.c
    disks = _File((i.sha256, i.format, i.file_size, sa.literal("")), m.disk, sa.true())
    stream = (i.stream_sha256, sa.literal(BASE), i.stream_size, i.sha256)
    bases = _File(stream, m.base, sa.and_(m.stream, i.stream_sha256 != ""))
    named: defaultdict[str, list[Shared]] = defaultdict(list)
    fetched = sa.or_(m.disk == NodeImageState.FETCHING, m.base == NodeImageState.FETCHING)
    if not c.scalar(sa.select(sa.exists().where(fetched, m.updated_at > utcnow() - _LONGEST))):
        return named  # as nearly always when rows have changed
    for file in (bases, disks):
        for (sha256, format, size, image), peers in _peers(c, file).items():
            for group in groups(sha256, peers):
                for one in group:
                    named[one.identity].append(Shared(sha256, format, size, group, image))
    return named


@dataclass(frozen=True, slots=True)
class _File:
    """One of the files of an image. columns: sha256, format and size of it, and the image of whose base it is.

    state: of the file on a node. there: whether a node can have it.
    """

    columns: tuple[Any, ...]
    state: sa.Column[Any]
    there: sa.ColumnElement[bool]


def _peers(c: Connection, file: _File) -> dict[tuple[str, str, int, str], list[Peer]]:
    """By file: the nodes that have it or fetch it, if a node fetches it."""
    n, i, m, l = t.nodes.c, t.images.c, t.image_nodes.c, t.links.c
    now = utcnow()
    fetching = sa.and_(file.state == NodeImageState.FETCHING, file.there, m.updated_at > now - _LONGEST)
    wanted = sa.select(m.image).join(t.images, i.sha256 == m.image).where(fetching).distinct()
    query = (
        sa.select(*file.columns, n.identity, n.address, n.facts, file.state.label("held"))
        .join_from(t.image_nodes, t.images, i.sha256 == m.image)
        .join(t.nodes, n.name == m.node)
        .join(t.links, l.identity == n.identity)
        .where(
            m.image.in_(wanted),
            file.there,
            sa.or_(sa.and_(fetching, image_files.needs(m.node, m.image)), file.state == NodeImageState.READY),
            n.state == NodeState.ACTIVE,
            l.beat_at > now - _ALIVE,
            i.state != ImageState.DELETING,
        )
        .order_by(i.sha256, n.identity)
    )
    found: defaultdict[tuple[str, str, int, str], list[Peer]] = defaultdict(list)
    for row in c.execute(query):
        peer = _peer(row)
        if peer is not None:
            sha256, format, size, image = row[:4]
            found[sha256, format, size, image].append(peer)
    return found


def groups(sha256: str, peers: Iterable[Peer]) -> Iterator[tuple[Peer, ...]]:
    """The nodes that exchange an image with each other. Each node that fetches it is in one group."""

    def rank(one: Peer) -> bytes:
        return hashlib.sha256(f"{sha256}\n{one.identity}".encode()).digest()

    ranked = sorted(peers, key=rank)
    complete = [one for one in ranked if one.complete]
    fetching = [one for one in ranked if not one.complete]
    for number, at in enumerate(range(0, len(fetching), _TOGETHER)):
        first = number * _COMPLETE % max(1, len(complete))
        yield (*fetching[at : at + _TOGETHER], *(complete[first:] + complete[:first])[:_COMPLETE])


def _peer(row: Row[*tuple[Any, ...]]) -> Peer | None:
    """None for a node that does not exchange images, or whose announcement cannot be that of another host."""
    port = row.facts.get("image_port")
    if type(port) is not int or not 1024 <= port <= 65535 or not row.address:
        return None
    try:
        address = ipaddress.ip_address(row.address)
    except ValueError:
        local = row.address == "localhost"
    else:
        local = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    return None if local else Peer(row.identity, row.address, port, row.held == NodeImageState.READY)

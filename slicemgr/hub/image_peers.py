"""Name to each node those that exchange an image with it: while a node fetches one, all that have it or fetch it.

An order is repeated and valid for a short time only, so a lost one costs seconds, and nodes end the exchange by
themselves. Only nodes that announce a port in their facts get orders: those of an earlier version do not.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import ImageState, NodeImageState, NodeState
from slicemgr.policy import messages
from slicemgr.policy.image_blocks import Peer, Shared
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
    """By identity: the images that each node exchanges now. Images that are being deleted are not among them.

    A node that reports to fetch an image is named only if it needs it: those that are named get it from the others.
    """
    n, i, m, l = t.nodes.c, t.images.c, t.image_nodes.c, t.links.c
    now = utcnow()
    fetching = sa.and_(m.state == NodeImageState.FETCHING, m.updated_at > now - _LONGEST)
    wanted = sa.select(m.image).where(fetching).distinct()
    query = (
        sa.select(i.sha256, i.format, i.file_size, n.identity, n.address, n.facts, m.state)
        .join_from(t.image_nodes, t.images, i.sha256 == m.image)
        .join(t.nodes, n.name == m.node)
        .join(t.links, l.identity == n.identity)
        .where(
            m.image.in_(wanted),
            sa.or_(sa.and_(fetching, image_files.needs(m.node, m.image)), m.state == NodeImageState.READY),
            n.state == NodeState.ACTIVE,
            l.beat_at > now - _ALIVE,
            i.state != ImageState.DELETING,
        )
        .order_by(i.sha256, n.identity)
    )
    by_image: defaultdict[tuple[str, str, int], list[Peer]] = defaultdict(list)
    for row in c.execute(query):
        peer = _peer(row)
        if peer is not None:
            by_image[row.sha256, row.format, row.file_size].append(peer)
    named: defaultdict[str, list[Shared]] = defaultdict(list)
    for image, peers in by_image.items():
        for group in groups(image[0], peers):
            for one in group:
                named[one.identity].append(Shared(*image, group))
    return named


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
    return None if local else Peer(row.identity, row.address, port, row.state == NodeImageState.READY)

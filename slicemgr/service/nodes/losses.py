"""What follows from the loss of a node: mail to the admins, and slivers that are made again elsewhere on request."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.service.nodes import evacuation
from slicemgr.service.outbound import mail
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_N, _S = t.nodes.c, t.slivers.c


def act(store: Store, config: Config) -> None:
    """Mail the admins once about each loss of a node, and rebuild slices with `on_loss` rebuild.

    Does nothing during the hold after a restore.
    """
    for one in evacuation.rebuild_lost(store, config):
        log.warning("slice %s/%s is not rebuilt: %s", one.project, one.slice, one.reason)
    with store.read() as c:
        lost = [] if incarnation.held(c) is not None else _lost(c)
    if lost and config.mail.server:
        with store.write() as c:
            for row in lost:
                _mail(c, config, row, utcnow())


def _lost(c: Connection) -> list[Row[*tuple[Any, ...]]]:
    count = sa.select(sa.func.count()).where(_S.node == _N.name).scalar_subquery().label("slivers")
    query = sa.select(_N.name, _N.site, _N.silent_since, count).where(_N.lost)
    return list(c.execute(query.order_by(_N.name)).all())


def _mail(c: Connection, config: Config, row: Row[*tuple[Any, ...]], now: datetime) -> None:
    since = f"{row.silent_since:%Y-%m-%dT%H:%M:%SZ}"
    lines = [
        f"Node {row.name}{f' at site {row.site}' if row.site else ''} has not reported since {since}.",
        f"The state of its {row.slivers} slivers is unknown. They continue to run if the node does.",
        "If the host is gone for good, its slivers can be made again from their images on other nodes: "
        f"`slicectl node evacuate {row.name}`.",
    ]
    if config.web.url:
        lines.append(f"{config.web.url}/nodes/{row.name}")
    key, subject = f"node lost {row.name} {since}", f"node {row.name} is lost"
    mail.queue_to_admins(c, config, key, subject, "\n\n".join(lines) + "\n", now)

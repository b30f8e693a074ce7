"""The hold after a restore: report how the host differs from the rows, and remove what an admin has released.

Slivers without a row stay published, so that users reach them as before.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from slicemgr import names, sliver_record
from slicemgr.agent import observe, records
from slicemgr.agent.node import Node
from slicemgr.agent.plan import DomainState, Observed
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.network import traffic
from slicemgr.errors import SlicemgrError
from slicemgr.model import SPARE, Desired, Image, ImageState, Sliver
from slicemgr.store import incarnation, pending

log = logging.getLogger(__name__)

_STATES = {DomainState.RUNNING: "running", DomainState.PAUSED: "paused"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row, and what the host has of it. recorded: its record on the host."""

    sliver: Sliver
    observed: Observed
    recorded: Sliver | None


class Hold:
    """Works for one node; one thread calls `look`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def look(self, host: observe.Host, slivers: Sequence[Sliver]) -> None:
        """Remove released slivers and report the others. slivers: all rows of the node. Raises StoreError."""
        node = self._node
        with node.store.read() as connection:
            released = incarnation.released(connection, node.config.node.name)
            images = pending.images(connection)
        without = sorted(host.slivers() - {one.id for one in slivers})
        spares = {one for one in without if host.sliver(one).hostname == SPARE}  # no user has been in one
        failed = {one: self._remove(one) for one in without if one in released or one in spares}
        found = []
        for one in without:
            recorded = records.read(node.config.node.pool, one)
            if failed.get(one) == "":
                continue
            if recorded is not None and one not in failed:
                self._publish(recorded)
            found.append(unclaimed(one, host.sliver(one), recorded, failed.get(one, "")))
        rows = [Row(one, host.sliver(one.id), records.read(node.config.node.pool, one.id)) for one in slivers]
        node.journal.add(
            pending.HostSeen(
                node.config.node.name,
                tuple(found),
                lost=lost(rows),
                images=tuple(one.sha256 for one in images if not self._has_files(one)),
                changed=changed(rows),
            )
        )

    def _publish(self, sliver: Sliver) -> None:
        """Publish a sliver. A failure must not prevent the report; the next one tries again."""
        try:
            self._node.publisher.publish(sliver)
        except SlicemgrError as error:
            log.error("cannot publish %s, which has no row: %s", sliver.id, error)

    def _remove(self, sliver: str) -> str:
        """Remove everything of a released sliver; why that failed, or ""."""
        config, pool = self._node.config, self._node.pool
        recorded = records.read(config.node.pool, sliver)
        try:
            self._node.hypervisor.kill(sliver)
            self._node.publisher.withdraw(sliver)
            launch.remove(config, sliver)
            traffic.clear(sliver)
            group = None if recorded is None else names.qgroup(recorded.serial)
            pool.delete_tree(names.sliver_dir(config.node.pool, sliver), group)
        except (SlicemgrError, OSError) as error:
            log.error("cannot remove %s, which was released: %s", sliver, error)
            return str(error)
        log.info("removed %s, which was released", sliver)
        return ""

    def _has_files(self, image: Image) -> bool:
        """Whether the node has what slices of the image are made from."""
        config = self._node.config
        if image.state is not ImageState.READY:
            return True
        disk = names.image_file(config.images_dir, image.sha256, image.format).exists()
        return disk and (not image.arch or names.base_dir(config.node.pool, image.sha256).is_dir())


def unclaimed(sliver: str, observed: Observed, recorded: Sliver | None, detail: str = "") -> pending.UnclaimedSliver:
    """The report of a sliver without a row. Pure."""
    stopped = "stopped" if observed.root else "remains"
    state = stopped if observed.domain is None else _STATES[observed.domain]
    record = None if recorded is None else sliver_record.to_json(recorded)
    return pending.UnclaimedSliver(sliver, state, record, tuple(sorted(observed.snapshots)), detail)


def lost(rows: Collection[Row]) -> tuple[str, ...]:
    """The slivers that should exist and have no root on the host. Pure."""
    return tuple(one.sliver.id for one in rows if one.sliver.desired is not Desired.ABSENT and not one.observed.root)


def changed(rows: Collection[Row]) -> dict[str, dict[str, Any]]:
    """The columns of rows that are older than the host: what happened after the backup. Pure.

    A stopped sliver that runs is started by its row. A disk limit never shrinks. Snapshots are those without a row.
    """
    found = {one.sliver.id: _newer(one) for one in rows if one.observed.root and not one.sliver.spare}
    return {sliver: columns for sliver, columns in found.items() if columns}


def _newer(row: Row) -> dict[str, Any]:
    want, observed, recorded = row.sliver, row.observed, row.recorded
    columns: dict[str, Any] = {}
    if observed.domain is not None:
        runs = Desired.PAUSED if observed.domain is DomainState.PAUSED else Desired.RUNNING
        if want.desired not in (runs, Desired.ABSENT):
            columns["desired"] = runs.value
        if observed.generation != want.generation:
            columns["generation"] = observed.generation
    if observed.epoch != want.epoch:
        columns["epoch"] = observed.epoch
        if recorded is not None and recorded.epoch == observed.epoch:
            columns |= {"origin": recorded.origin, "inherited": recorded.inherited}
    if recorded is not None and recorded.limits.disk > want.limits.disk:
        columns["disk"] = recorded.limits.disk
    if snapshots := sorted(observed.snapshots - {one.id for one in want.snapshots}):
        columns["snapshots"] = snapshots
    return columns


def published(rows: Sequence[Sliver], without: Sequence[Sliver]) -> list[Sliver]:
    """The slivers to publish at the start of the agent during a hold. Pure.

    rows: of the node. without: those that exist on the host and have no row. Of two with an address or a port in
    common, the one that exists on the host is published, since the other was deleted after the backup.
    """
    addresses = {one.address for one in without}
    ports = {port for one in without for port in range(one.ports.first, one.ports.last + 1)}
    kept = [
        one
        for one in rows
        if one.address not in addresses and ports.isdisjoint(range(one.ports.first, one.ports.last + 1))
    ]
    return [*kept, *without]

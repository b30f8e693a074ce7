"""Prepare what all slivers of the node share, at the start of the agent."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slicemgr.agent import file_modes, hold, images, observe, records
from slicemgr.agent.node import Node
from slicemgr.config import Config
from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.kernel import capture_rings, cgroup
from slicemgr.drivers.network import fragments
from slicemgr.drivers.storage import read_ahead
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Sliver
from slicemgr.store import allocations, incarnation, pending

log = logging.getLogger(__name__)


def prepare(node: Node) -> None:
    """Prepare directories, pool, limits and packet filter. Raises Refused or Failed with what the node lacks."""
    config = node.config
    for directory in (config.node.run_dir / "launch", observe.settled_dir(config)):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file_modes.tighten(config)
    cgroup.collect_importers()
    node.pool.check()
    node.pool.ensure_layout()
    log.info("disk quota: %s", node.pool.enable_quota())
    _limit_read_ahead(config)
    _bound_kernel_memory(config)
    with node.store.read() as connection:
        rows = pending.slivers(connection, config.node.name)
        held = incarnation.held(connection)
        if pending.joins_with_certificate(connection, config.node.name):
            hint = "set another node.name"
            raise Refused(Code.CONFLICT, f"{config.node.name} is a node that joins with a certificate", hint=hint)
    _note_keys(config, rows)
    with node.store.write() as connection:
        if wrong := allocations.recount(connection):
            log.warning("what the slivers of %s were allocated was counted again", ", ".join(wrong))
    slivers = [row.sliver for row in rows]
    if held is None:
        records.write_missing(config.node.pool, slivers)
    else:
        log.warning("%s: nothing is changed on the node until `%s`", held.says(), incarnation.REVIEW)
        slivers = hold.published(slivers, _without_rows(config, {one.id for one in slivers}))
    images.note_findings(config, node.store, node.journal)
    node.publisher.reset(slivers)
    node.machines.find(node.announce)
    node.announce()


def _without_rows(config: Config, known: set[str]) -> list[Sliver]:
    """The slivers in the pool that have no row and a valid record."""
    found = (records.read(config.node.pool, one) for one in sorted(observe.in_pool(config) - known))
    return [one for one in found if one is not None]


def _limit_read_ahead(config: Config) -> None:
    """A kernel without the setting costs memory only."""
    if not config.node.read_ahead.bytes:
        return
    try:
        read_ahead.limit(config.node.pool, config.node.read_ahead.bytes)
    except OSError as error:
        log.warning("node.read_ahead has no effect on this kernel: %s", error)


def _bound_kernel_memory(config: Config) -> None:
    """Install the limits on kernel memory. `doctor` reports failures; without a program, capture rings are denied."""
    for bound in (
        lambda: capture_rings.install(config.node.run_dir, config.limits.capture_rings.bytes),
        fragments.install,
    ):
        try:
            bound()
        except Failed as error:
            log.warning("%s", error)


def _note_keys(config: Config, rows: Sequence[pending.SliverRow]) -> None:
    """Write the record of keys of slivers that an earlier version created: their roots have the keys of their rows."""
    pool = config.node.pool
    for row in rows:
        sliver = row.sliver
        if observe.has_root(config, sliver.id) and authorized_keys.read_note(pool, sliver.id) is None:
            authorized_keys.write_note(pool, sliver.id, sliver.ssh_keys, sliver.ssh_keys)

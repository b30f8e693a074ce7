"""Compare the host with the rows: find the repairs, which the scheduler carries out, and remove leftovers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slicemgr import names
from slicemgr.agent import observe, repairs
from slicemgr.agent.hold import Hold
from slicemgr.agent.node import Node
from slicemgr.agent.plan import Observed
from slicemgr.agent.repairs import Repair
from slicemgr.drivers.kernel import cgroup
from slicemgr.errors import SlicemgrError
from slicemgr.model import Sliver
from slicemgr.store import StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The observed host, and the repairs that are due. Each repair is computed when the caller requests it."""

    host: observe.Host
    repairs: Iterator[Repair]


class Reconciler:
    """Compares host and rows. One thread calls `compare` and `tidy`; any thread may call `repaired`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._attempts = repairs.Attempts()
        self._hold = Hold(node)

    def compare(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> Comparison | None:
        """Announce the node, observe the host and restore the packet filter; None if the host cannot be observed.

        slivers: all of the node. busy: whether work on a sliver is in progress.
        """
        host = self._observe()
        if host is None:
            return None
        return Comparison(host, self._find(slivers, host.sliver, busy))

    def check(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> Iterator[Repair]:
        """The repairs of a few slivers, each of which is observed by itself. Raises Failed if that is not possible."""
        node = self._node
        return self._find(slivers, lambda sliver: observe.one(node.config, node.hypervisor, sliver), busy)

    def _find(
        self, slivers: Sequence[Sliver], observed: Callable[[str], Observed], busy: Callable[[str], bool]
    ) -> Iterator[Repair]:
        known = self._node.machines.found is not None
        return repairs.find(slivers, observed, self._attempts, time.monotonic(), busy=busy, machines_known=known)

    def report(self, slivers: Sequence[Sliver]) -> None:
        """The same during the hold after a restore: only report the differences. Raises StoreError.

        slivers: all of the node.
        """
        host = self._observe()
        if host is None or self._node.raw_slivers.is_set():
            return
        try:
            self._hold.look(host, slivers)
        except StoreError:
            raise
        except SlicemgrError as error:
            log.error("cannot report the slivers without a row: %s", error)

    def _observe(self) -> observe.Host | None:
        node = self._node
        node.announce()
        try:
            host = observe.host(node.config, node.hypervisor)
            node.publisher.heal()
        except SlicemgrError as error:
            log.error("cannot observe the node: %s", error)
            return None
        return host

    def repaired(self, sliver: str, error: SlicemgrError | None) -> None:
        """Record the outcome of a repair: after an error, the next attempt waits."""
        if error is None:
            self._attempts.succeeded(sliver)
            return
        wait = self._attempts.failed(sliver, time.monotonic())
        log.error("cannot repair %s, next attempt in %.0f s: %s", sliver, wait, error)

    def tidy(self, host: observe.Host, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> None:
        """Remove quota groups that no sliver has, marks of domains that have ended, and empty cgroups of slivers."""
        node = self._node
        node.pool.collect_groups({names.qgroup(sliver.serial) for sliver in slivers})
        for marked, pid in host.settled.items():
            domain = host.domains.get(marked)
            if domain is None or domain.pid != pid:
                observe.mark(node.config, marked, pid).unlink(missing_ok=True)
        if not node.raw_slivers.is_set() and not any(busy(sliver.id) for sliver in slivers):
            cgroup.collect_empty({names.domain(sliver) for sliver in host.domains})

"""The slivers in the packet filter's rules: every sliver that has a row, running or not.

A sliver is published before its link exists and withdrawn after its link is gone. A table is always rewritten as a
whole. So the firewall reads the slivers only when its turn comes, and all changes that wait share one write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.network.firewall_rules import Published
from slicemgr.errors import SlicemgrError
from slicemgr.model import Sliver


def published(sliver: Sliver) -> Published:
    """The properties of a sliver that the packet filter needs."""
    return Published(
        sliver=sliver.id, tag=sliver.tag, address=sliver.address, ports=sliver.ports, siblings=sliver.siblings
    )


class Publisher:
    """Publishes and withdraws slivers. Thread-safe; each method returns when the kernel has the rules."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self._open: dict[str, Published] = {}
        self._lock = threading.Lock()

    def reset(self, slivers: Iterable[Sliver]) -> None:
        """Write all rules from the rows, whatever the kernel has."""
        with self._lock:
            self._open = {one.id: published(one) for one in slivers}
        self._firewall.replace(self._all, full=True)

    def heal(self) -> None:
        """Write all rules again if another program has changed slicemgr's chains."""
        if self._firewall.check():
            self._firewall.replace(self._all, full=True)

    def publish(self, sliver: Sliver) -> None:
        """Write the rules of a sliver. Raises Refused or Failed."""
        self._change(sliver.id, published(sliver))

    def withdraw(self, sliver: str) -> None:
        """Remove the rules of a sliver. Raises Refused or Failed."""
        self._change(sliver, None)

    def _change(self, sliver: str, wanted: Published | None) -> None:
        before = self._swap(sliver, wanted)
        if before == wanted:
            return
        try:
            self._firewall.replace(self._all)
        except SlicemgrError:  # otherwise the next attempt would find nothing to change
            self._swap(sliver, before)
            raise

    def _swap(self, sliver: str, wanted: Published | None) -> Published | None:
        """Replace the published state of the sliver and return the previous one."""
        with self._lock:
            before = self._open.pop(sliver, None)
            if wanted is not None:
                self._open[sliver] = wanted
            return before

    def _all(self) -> tuple[Published, ...]:
        with self._lock:
            return tuple(self._open.values())

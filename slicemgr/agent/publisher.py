"""The slivers that the packet filter knows: every one that has a row, whether it runs or not.

A sliver is published before its link exists and withdrawn after it is gone. Rewriting a table costs the same for one
sliver or fifty: the firewall reads the slivers when its turn comes, so that all changes that wait share one write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.network.firewall_rules import Published
from slicemgr.errors import SlicemgrError
from slicemgr.model import Sliver


def published(sliver: Sliver) -> Published:
    return Published(
        sliver=sliver.id, tag=sliver.tag, address=sliver.address, ports=sliver.ports, siblings=sliver.siblings
    )


class Publisher:
    """Thread-safe; each method returns when the kernel has its rules."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self._open: dict[str, Published] = {}
        self._lock = threading.Lock()

    def reset(self, slivers: Iterable[Sliver]) -> None:
        """Write all rules from the rows, whatever is in the kernel."""
        with self._lock:
            self._open = {one.id: published(one) for one in slivers}
        self._firewall.replace(self._all, full=True)

    def heal(self) -> None:
        """Write all rules again if another program changed our chains."""
        if self._firewall.check():
            self._firewall.replace(self._all, full=True)

    def publish(self, sliver: Sliver) -> None:
        self._change(sliver.id, published(sliver))

    def withdraw(self, sliver: str) -> None:
        self._change(sliver, None)

    def _change(self, sliver: str, wanted: Published | None) -> None:
        before = self._swap(sliver, wanted)
        if before == wanted:
            return
        try:
            self._firewall.replace(self._all)
        except SlicemgrError:  # the next attempt must not take it for done
            self._swap(sliver, before)
            raise

    def _swap(self, sliver: str, wanted: Published | None) -> Published | None:
        """Replace what is published of the sliver; what was published until now."""
        with self._lock:
            before = self._open.pop(sliver, None)
            if wanted is not None:
                self._open[sliver] = wanted
            return before

    def _all(self) -> tuple[Published, ...]:
        with self._lock:
            return tuple(self._open.values())

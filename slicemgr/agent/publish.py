"""The slivers that the packet filter knows: every one that has a row, whether it runs or not.

A sliver is published before its link exists and withdrawn after it is gone. Rewriting a table costs the same for one
sliver or fifty: the firewall reads the slivers when its turn comes, so that all who wait share one write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slicemgr.drivers.firewall import Firewall
from slicemgr.drivers.firewall_rules import Published
from slicemgr.errors import SlicemgrError
from slicemgr.model import Sliver


def published(sliver: Sliver) -> Published:
    return Published(
        sliver=sliver.id, tag=sliver.tag, address=sliver.address, ports=sliver.ports, siblings=sliver.siblings
    )


class Publisher:
    """Thread-safe; each method returns when the kernel has the rules it asked for."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self._open: dict[str, Published] = {}
        self._lock = threading.Lock()

    def reset(self, slivers: Iterable[Sliver]) -> None:
        """Make the rules anew from the rows, whatever is in the kernel."""
        with self._lock:
            self._open = {one.id: published(one) for one in slivers}
        self._firewall.replace(self._all, full=True)

    def heal(self) -> None:
        """Write everything again if somebody else changed our chains."""
        if self._firewall.check():
            self._firewall.replace(self._all, full=True)

    def publish(self, sliver: Sliver) -> None:
        with self._lock:
            before = self._open.get(sliver.id)
            if before == published(sliver):
                return
            self._open[sliver.id] = published(sliver)
        self._write(sliver.id, before)

    def withdraw(self, sliver: str) -> None:
        with self._lock:
            before = self._open.pop(sliver, None)
            if before is None:
                return
        self._write(sliver, before)

    def _write(self, sliver: str, before: Published | None) -> None:
        """before: what the kernel has of the sliver, if this fails: the next try must not find it done."""
        try:
            self._firewall.replace(self._all)
        except SlicemgrError:
            with self._lock:
                if before is None:
                    self._open.pop(sliver, None)
                else:
                    self._open[sliver] = before
            raise

    def _all(self) -> tuple[Published, ...]:
        with self._lock:
            return tuple(self._open.values())

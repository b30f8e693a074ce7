"""Slivers whose ports are open, and the group commit that brings the firewall there.

Rewriting a table costs the same for one sliver or fifty: whoever comes while a commit runs shares the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slicemgr.drivers.firewall import Firewall
from slicemgr.drivers.firewall_rules import Published
from slicemgr.model import Desired, Sliver

_OPEN = (Desired.RUNNING, Desired.PAUSED)


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
        self._committing = threading.Lock()
        self._asked = 0
        self._done = 0

    def reset(self, slivers: Iterable[Sliver]) -> None:
        """Make the rules anew from the rows, whatever is in the kernel."""
        with self._committing:
            with self._lock:
                self._open = {one.id: published(one) for one in slivers if one.desired in _OPEN}
                self._asked += 1
                asked, wanted = self._asked, tuple(self._open.values())
            self._firewall.replace(wanted, full=True)
            self._done = asked

    def heal(self) -> None:
        """Write everything again if somebody else changed our chains."""
        with self._committing:
            if self._firewall.check():
                with self._lock:
                    wanted = tuple(self._open.values())
                self._firewall.replace(wanted, full=True)

    def publish(self, sliver: Sliver) -> None:
        with self._lock:
            if self._open.get(sliver.id) == published(sliver):
                return
            self._open[sliver.id] = published(sliver)
        self._commit()

    def withdraw(self, sliver: str) -> None:
        with self._lock:
            if self._open.pop(sliver, None) is None:
                return
        self._commit()

    def _commit(self) -> None:
        with self._lock:
            self._asked += 1
            ticket = self._asked
        with self._committing:
            if self._done >= ticket:
                return
            with self._lock:
                asked, wanted = self._asked, tuple(self._open.values())
            self._firewall.replace(wanted)
            self._done = asked

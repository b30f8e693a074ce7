"""The acceleration of virtual machines on this node: KVM, emulation or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from slicemgr.config import Config
from slicemgr.drivers.libvirt import acceleration
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.host import Acceleration, Host

log = logging.getLogger(__name__)


class Machines:
    """The acceleration as found. `found` is None until it is known.

    counter_rate: see `Host`; measured where machines are emulated.
    """

    def __init__(self, config: Config) -> None:
        self._wanted = config.libvirt.acceleration
        self._cache = config.node.state_dir / "acceleration.json"
        self.found: Found | None = None
        self.counter_rate = 0

    def place(self, node: Host) -> Host:
        """The node's properties with its acceleration, if that is known."""
        if not self.found or not self.found.acceleration:
            return node
        return replace(node, acceleration=self.found.acceleration, counter_rate=self.counter_rate)

    def find(self, then: Callable[[], None]) -> None:
        """Find the acceleration: at once if it was found before, so that a restart of the agent refuses no machines.

        Otherwise in the background, because a guest that does not boot takes long, and `then` is called.
        """
        known = acceleration.cached(self._wanted, self._cache)
        if known is not None:
            self._set(known)
            return

        def work() -> None:
            self._set(acceleration.find(self._wanted, self._cache))
            then()

        threading.Thread(target=work, name="acceleration", daemon=True).start()

    def _set(self, found: Found) -> None:
        if found.acceleration is Acceleration.EMULATION:
            self.counter_rate = acceleration.counter_rate()
        self.found = found
        log.info("virtual machines: %s: %s", found.acceleration or "none", found.reason)

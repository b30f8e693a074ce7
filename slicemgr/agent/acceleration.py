"""The acceleration of virtual machines on this node: KVM, emulation or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from slicemgr.config import Config
from slicemgr.drivers.libvirt import acceleration
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.host import Host

log = logging.getLogger(__name__)


class Machines:
    """The acceleration as found. `found` is None until it is known."""

    def __init__(self, config: Config) -> None:
        self._wanted = config.libvirt.acceleration
        self._cache = config.node.state_dir / "acceleration.json"
        self.found: Found | None = None

    def place(self, node: Host) -> Host:
        """The node's properties with its acceleration, if that is known."""
        return replace(node, acceleration=self.found.acceleration) if self.found and self.found.acceleration else node

    def find(self, then: Callable[[], None]) -> None:
        """Find the acceleration in the background, because a guest that does not boot takes long; then call `then`."""

        def work() -> None:
            self.found = acceleration.find(self._wanted, self._cache)
            log.info("virtual machines: %s: %s", self.found.acceleration or "none", self.found.reason)
            then()

        threading.Thread(target=work, name="acceleration", daemon=True).start()

"""Virtual machines beside the life of each: what runs them on this node, and what their guests say."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from slicemgr.config import Config
from slicemgr.drivers import acceleration
from slicemgr.drivers.acceleration import Found
from slicemgr.drivers.hypervisor import Hypervisor
from slicemgr.drivers.place import Place

log = logging.getLogger(__name__)


class Machines:
    """`found` is None until it is known."""

    def __init__(self, config: Config) -> None:
        self._wanted = config.libvirt.acceleration
        self._cache = config.node.state_dir / "acceleration.json"
        self.found: Found | None = None

    def place(self, node: Place) -> Place:
        """The node, with what runs virtual machines as far as that is known."""
        return replace(node, acceleration=self.found.acceleration) if self.found and self.found.acceleration else node

    def look(self, then: Callable[[], None]) -> None:
        """Find out in the background, as a guest that does not boot takes its time; `then` is called."""

        def work() -> None:
            self.found = acceleration.find(self._wanted, self._cache)
            log.info("virtual machines: %s: %s", self.found.acceleration or "none", self.found.reason)
            then()

        threading.Thread(target=work, name="acceleration", daemon=True).start()


class Guests:
    """What the guests say of their memory. Asked in a thread of its own: a QEMU that hangs does not answer."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._thread: threading.Thread | None = None
        self._known: dict[str, int] = {}

    def look(self, slivers: Iterable[str]) -> dict[str, int]:
        """Bytes used inside, as of the last look; begins the next one, if that is not under way still."""
        wanted = list(slivers)
        if wanted and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._ask, args=(wanted,), name="guests", daemon=True)
            self._thread.start()
        return self._known

    def _ask(self, slivers: list[str]) -> None:
        self._known = self._hypervisor.guest_memory(slivers)

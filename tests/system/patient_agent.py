"""The agent with the protections against held files weakened: it opens files in roots with blocking opens.

No worker is ever relieved of a job that takes very long.
"""

from __future__ import annotations

import os

from slicemgr.agent.worker_threads import Turns
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.main import cli


def blocking(self: Root, fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


honest = Turns.__init__


def unrelieved(self: Turns, workers: int) -> None:
    honest(self, workers, long=86400)


Root._open = blocking  # type: ignore[method-assign]
Turns.__init__ = unrelieved  # type: ignore[method-assign,assignment]
cli(["agent"])

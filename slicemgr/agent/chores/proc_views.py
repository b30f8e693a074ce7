"""Keep lxcfs running, and the files that it provides to containers valid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from slicemgr.agent.chores.runner import Chore, First
from slicemgr.drivers.guest.proc_view import ProcView

log = logging.getLogger(__name__)

_INTERVAL = 2.0  # seconds
_LONGEST = 60.0  # seconds between attempts to start a daemon that does not start
_RENEWALS = 3  # runs after a start that renew: a container may have been created with files that are now dead


class ProcViews:
    """Checks the daemon at intervals. The daemon keeps running when the agent ends.

    inits: the first processes of the running containers, as the host's pids.
    """

    def __init__(self, view: ProcView, inits: Callable[[], Collection[int]]) -> None:
        self._view = view
        self._inits = inits
        self._renewals = _RENEWALS

    def chores(self) -> list[Chore]:
        """The chore; none if lxcfs is not installed. It first runs before any container is created."""
        chore = Chore(
            thread="proc views",
            run=self.keep,
            interval=_INTERVAL,
            longest=_LONGEST,
            each_failure=True,
            first=First.BEFORE_ALL,
        )
        return [chore] if self._view.installed() else []

    def keep(self) -> None:
        """Start the daemon if it does not respond, and renew the containers' files. Raises SlicemgrError."""
        if not self._view.answers():
            self._view.start()
            self._renewals = _RENEWALS
        if self._renewals:
            renewed = self._view.renew(self._inits())
            self._renewals -= 1
            if renewed:
                log.warning("lxcfs was restarted: %d containers have its files again", len(renewed))

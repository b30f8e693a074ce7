"""Keeps lxcfs running, and the files that containers have of it alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from slicemgr.agent.chores.runner import Chore, First
from slicemgr.drivers.guest.proc_view import ProcView

log = logging.getLogger(__name__)

_INTERVAL = 2.0  # seconds
_LONGEST = 60.0  # seconds between attempts to start a daemon that does not start
_RENEWALS = 3  # runs after a start that renew: a container may just have been made with files that are dead now


class ProcViews:
    """Examines the daemon again and again; the end of the agent leaves it running.

    inits: the first processes of the containers that run, as the host numbers them.
    """

    def __init__(self, view: ProcView, inits: Callable[[], Collection[int]]) -> None:
        self._view = view
        self._inits = inits
        self._renewals = _RENEWALS

    def chores(self) -> list[Chore]:
        """None where lxcfs is not installed. The first run is before the first container is made."""
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
        """Start the daemon if it does not answer, and then give containers its files again. Raises SlicemgrError."""
        if not self._view.answers():
            self._view.start()
            self._renewals = _RENEWALS
        if self._renewals:
            renewed = self._view.renew(self._inits())
            self._renewals -= 1
            if renewed:
                log.warning("lxcfs was started anew: %d containers have its files again", len(renewed))

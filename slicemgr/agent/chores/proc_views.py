"""Keeps lxcfs running, and the files that containers have of it alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Self

from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.errors import SlicemgrError

log = logging.getLogger(__name__)

_LOOK = 2.0  # seconds between looks
_LONGEST = 60.0  # seconds between attempts to start a daemon that does not start
_RENEWALS = 3  # looks after a start that renew: a container may just have been made with what is dead now


class ProcViews:
    """A context manager: looks at the daemon until its end, which leaves the daemon running.

    inits: the first processes of the containers that run, as the host numbers them.
    """

    def __init__(self, view: ProcView, inits: Callable[[], Collection[int]]) -> None:
        self._view = view
        self._inits = inits
        self._renewals = _RENEWALS
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        if self._view.installed():
            self._look()  # before the first container is made
            threading.Thread(target=self._watch, name="proc views", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _watch(self) -> None:
        pause = _LOOK
        while not self._stopping.wait(pause):
            pause = _LOOK if self._look() else min(2 * pause, _LONGEST)

    def _look(self) -> bool:
        """Whether containers have what they should."""
        try:
            if not self._view.answers():
                self._view.start()
                self._renewals = _RENEWALS
            if self._renewals:
                renewed = self._view.renew(self._inits())
                self._renewals -= 1
                if renewed:
                    log.warning("lxcfs was started anew: %d containers have its files again", len(renewed))
        except SlicemgrError as error:
            log.error("%s", error)
            return False
        return True

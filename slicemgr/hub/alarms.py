"""Whether the broker takes messages: beyond its limits of memory and disk it takes none, and no node can report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from slicemgr.errors import Failed
from slicemgr.hub.management import Management
from slicemgr.ipc import broker_state

log = logging.getLogger(__name__)


class Alarms:
    """raised: what the broker has too little of; empty if it takes messages, or does not answer.

    file: where others on this machine find its state. report: called with what it has too little of, when an alarm
    begins.
    """

    def __init__(self, api: Management, file: Path, report: Callable[[Sequence[str]], None] | None = None) -> None:
        self._api, self._file, self._report = api, file, report
        self._outdated: Sequence[str] = ()
        self.raised: Sequence[str] = ()

    def look(self) -> None:
        """Ask the broker. Raises Failed, StoreError, or OSError if the file cannot be written."""
        before = self.raised
        try:
            state = self._api.state()
        except Failed:
            self.raised = ()
            raise
        self.raised = [] if state is None else state.lacks()
        if self.raised and not before:
            log.warning("the broker takes no messages, so no node can report: %s", ", ".join(self.raised))
        elif before and not self.raised:
            log.info("the broker takes messages again")
        if state is None:
            return
        if state.outdated and state.outdated != self._outdated:
            log.warning("settings of the broker are outdated: %s: %s", "; ".join(state.outdated), state.remedy())
        self._outdated = state.outdated
        broker_state.write(self._file, state)
        if self.raised and not before and self._report is not None:
            self._report(self.raised)

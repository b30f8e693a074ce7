"""Whether the broker takes messages: beyond its limits of memory and disk it takes none, and no node can report."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slicemgr.hub.management import Management

log = logging.getLogger(__name__)


class Alarms:
    """raised: what the broker has too little of; empty if it takes messages, or does not answer."""

    def __init__(self, api: Management) -> None:
        self._api = api
        self.raised: Sequence[str] = ()

    def look(self) -> None:
        """Ask the broker. Raises Failed."""
        before, self.raised = self.raised, ()
        self.raised = self._api.alarms()
        if self.raised and not before:
            log.warning("the broker takes no messages, so no node can report: %s", ", ".join(self.raised))
        elif before and not self.raised:
            log.info("the broker takes messages again")

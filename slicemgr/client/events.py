"""Events: the actions of users, with their times."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, slice_filters
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Events(OldList, Resource):
    def list(self, *, limit: int | None = 100, **filters: str | None) -> builtins.list[wire.Event]:
        """The newest events, at most `limit`; None: all. filters: slice, project, user, action, since, until."""
        filters = {"project": self._connection.project, **filters}
        return pages(self._connection.get, "/events", "events", slice_filters(filters), limit)

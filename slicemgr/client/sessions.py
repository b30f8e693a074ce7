"""Sessions of browsers. user: the owner, if an admin acts for another user."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Sessions(OldList, Resource):
    def list(self, user: str | None = None) -> builtins.list[wire.Session]:
        return pages(self._connection.get, "/sessions", "sessions", {"user": user})

    def revoke(self, id: str) -> None:
        self._connection.call("DELETE", f"/sessions/{segment('ID', id)}")

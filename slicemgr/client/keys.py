"""ssh keys. user: the owner, if an admin acts for another user."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import items, pages, query, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Keys(OldList, Resource):
    def list(self, user: str | None = None) -> builtins.list[wire.Key]:
        return pages(self._connection.get, "/keys", "keys", {"user": user})

    def add(self, text: str) -> builtins.list[wire.Key]:
        """Add keys. text: the content of a .pub file."""
        return items(self._connection.call("POST", "/keys", {"key": text}), "keys")

    def remove(self, id: str, user: str | None = None) -> None:
        self._connection.call("DELETE", f"/keys/{segment('ID', id)}" + query({"user": user}))

"""API tokens. user: the owner, if an admin acts for another user."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Tokens(OldList, Resource):
    def list(self, user: str | None = None) -> builtins.list[wire.Token]:
        return pages(self._connection.get, "/tokens", "tokens", {"user": user})

    def create(self, label: str, **wanted: str | None) -> wire.NewToken:
        """Create a token; the service never shows it again. wanted: scope (read or write), expires (such as `30d`)."""
        given = {key: value for key, value in wanted.items() if value is not None}
        return cast("wire.NewToken", self._connection.call("POST", "/tokens", {"label": label, **given}))

    def revoke(self, id: str) -> None:
        self._connection.call("DELETE", f"/tokens/{segment('ID', id)}")

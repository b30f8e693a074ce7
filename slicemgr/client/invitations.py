"""Invitations to projects, for the invited user. Those that a project sent: `slicemgr.client.projects`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Invitations(Resource):
    def list(self) -> builtins.list[wire.ProjectInvitation]:
        """Those that you can accept or decline."""
        return pages(self._connection.get, "/me/invitations", "invitations", {})

    def accept(self, id: str) -> wire.Me:
        """Become a member; your account with its projects."""
        return cast("wire.Me", self._connection.call("POST", f"/me/invitations/{segment('ID', id)}/accept", {}))

    def decline(self, id: str) -> None:
        self._connection.call("POST", f"/me/invitations/{segment('ID', id)}/decline", {})

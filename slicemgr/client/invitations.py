"""Invitations to projects, for the invited user. `slicemgr.client.projects` has those that a project sent."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Invitations(Resource):
    def list(self) -> builtins.list[wire.ProjectInvitation]:
        """The invitations that the user can accept or decline."""
        return pages(self._connection.get, "/me/invitations", "invitations", {})

    def accept(self, id: str) -> wire.Me:
        """Become a member of the project. Returns the user's account with its projects."""
        return cast("wire.Me", self._connection.call("POST", f"/me/invitations/{segment('ID', id)}/accept", {}))

    def decline(self, id: str) -> None:
        self._connection.call("POST", f"/me/invitations/{segment('ID', id)}/decline", {})

"""Projects, their members, and the invitations that they sent."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Projects(OldList, Resource):
    def list(self) -> builtins.list[wire.Project]:
        return pages(self._connection.get, "/projects", "projects", {})

    def get(self, name: str) -> wire.Project:
        return cast("wire.Project", self._connection.call("GET", f"/projects/{segment('NAME', name)}"))

    def create(self, name: str, **fields: object) -> wire.Project:
        """Create a project. fields: description, pi (a user), quota, ceiling.

        Limits of quota and ceiling: slices, slivers, vcpus, memory, disk, ports, lease.
        """
        return cast("wire.Project", self._connection.call("POST", "/projects", {"name": name, **fields}))

    def change(self, name: str, **fields: object) -> wire.Project:
        """Change a project. fields: description; for an admin also quota and ceiling, with the limits to change."""
        return cast("wire.Project", self._connection.call("PATCH", f"/projects/{segment('NAME', name)}", fields))

    def delete(self, name: str) -> None:
        self._connection.call("DELETE", f"/projects/{segment('NAME', name)}")

    def set_member(self, project: str, user: str, role: str = "member") -> wire.Project:
        """Change the role of a member, or add a user: an admin adds the member, a PI sends an invitation."""
        path = f"/projects/{segment('PROJECT', project)}/members/{segment('USER', user)}"
        return cast("wire.Project", self._connection.call("PUT", path, {"role": role}))

    def remove_member(self, project: str, user: str) -> None:
        self._connection.call("DELETE", f"/projects/{segment('PROJECT', project)}/members/{segment('USER', user)}")

    def invite(self, project: str, invitee: str, role: str = "member") -> wire.ProjectInvitation:
        """Invite a user. invitee: user name or mail address; the answer does not reveal whether the account exists."""
        body = {"invitee": invitee, "role": role}
        return cast("wire.ProjectInvitation", self._connection.call("POST", _invitations(project), body))

    def invitations(self, project: str) -> builtins.list[wire.ProjectInvitation]:
        """The pending invitations, for the PIs of the project."""
        return pages(self._connection.get, _invitations(project), "invitations", {})

    def withdraw_invitation(self, project: str, id: str) -> None:
        self._connection.call("DELETE", f"{_invitations(project)}/{segment('ID', id)}")


def _invitations(project: str) -> str:
    return f"/projects/{segment('PROJECT', project)}/invitations"

"""Users, for admins. Other users may change some fields of their own account."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Users(OldList, Resource):
    def list(self) -> builtins.list[wire.User]:
        return pages(self._connection.get, "/users", "users", {})

    def get(self, name: str) -> wire.User:
        return cast("wire.User", self._connection.call("GET", _path(name)))

    def invite(self, name: str, **fields: object) -> wire.Invited:
        """Invite a user. Returns the user and the link, which is never shown again. fields: full_name, email, admin."""
        return cast("wire.Invited", self._connection.call("POST", "/users", {"name": name, **fields}))

    def invite_again(self, name: str) -> wire.Invited:
        """Create a new link for a user who lost the old one or forgot the password."""
        return cast("wire.Invited", self._connection.call("POST", f"{_path(name)}/invitation", {}))

    def change(self, name: str, **fields: object) -> wire.User:
        """Change a user. fields: full_name, email; own account: default_project; for an admin: enabled, admin."""
        return cast("wire.User", self._connection.call("PATCH", _path(name), fields))

    def delete(self, name: str) -> None:
        """Delete the account of a user who owns no slices (admins)."""
        self._connection.call("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/users/{segment('NAME', name)}"

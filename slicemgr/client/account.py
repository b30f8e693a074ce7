"""The account of the caller, and signing in."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Account(Resource):
    """`login`, `accept_invitation` and `create` need no token."""

    def login(self, user: str, password: str, **wanted: str | None) -> wire.NewToken:
        """Sign in and return a new token, which the service never shows again.

        wanted: label, scope (read or write), expires (such as `30d`).
        """
        given = {key: value for key, value in wanted.items() if value is not None}
        body = {"user": user, "password": password, **given}
        return cast("wire.NewToken", self._connection.call("POST", "/login", body))

    def accept_invitation(self, token: str, password: str) -> str:
        """Set the password of the invited user and return the user's name. token: the last part of the link."""
        return str(self._connection.call("POST", "/invitation", {"token": token, "password": password})["user"])

    def create(self, token: str, password: str, name: str, full_name: str = "") -> str:
        """Create an account with the link of an invitation to a project and return its name. token: as above."""
        body = {"token": token, "password": password, "name": name, **({"full_name": full_name} if full_name else {})}
        return str(self._connection.call("POST", "/invitation", body)["user"])

    def logout(self) -> None:
        """Revoke the token of this client."""
        self._connection.call("DELETE", "/tokens/current")

    def get(self) -> wire.Me:
        return cast("wire.Me", self._connection.call("GET", "/me"))

    def change_password(self, old: str, new: str) -> None:
        self._connection.call("POST", "/me/password", {"old": old, "new": new})

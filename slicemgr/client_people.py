"""The client's methods about people, projects, credentials and requests: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from slicemgr.client_json import items, pages, query, segment

if TYPE_CHECKING:
    from slicemgr import wire


class People:
    """`_call` is the client's."""

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _get(self, path: str) -> dict[str, Any]:
        raise NotImplementedError

    # signing in: these need no token

    def login(self, user: str, password: str, **wanted: str | None) -> wire.NewToken:
        """A token, told this once. wanted: label, scope (read or write), expires (such as `30d`)."""
        given = {key: value for key, value in wanted.items() if value is not None}
        return cast("wire.NewToken", self._call("POST", "/login", {"user": user, "password": password, **given}))

    def accept_invitation(self, token: str, password: str) -> str:
        """Set the password of whom the link is for; the user's name. token: the link's last part."""
        return str(self._call("POST", "/invitation", {"token": token, "password": password})["user"])

    def logout(self) -> None:
        """Revoke the token of this client."""
        self._call("DELETE", "/tokens/current")

    # people

    def me(self) -> wire.Me:
        return cast("wire.Me", self._call("GET", "/me"))

    def change_password(self, old: str, new: str) -> None:
        self._call("POST", "/me/password", {"old": old, "new": new})

    def users(self) -> list[wire.User]:
        return pages(self._get, "/users", "users", {})

    def user(self, name: str) -> wire.User:
        return cast("wire.User", self._call("GET", f"/users/{segment('NAME', name)}"))

    def invite_user(self, name: str, **fields: object) -> wire.Invited:
        """The new user and the link, told this once. fields: full_name, email, admin."""
        return cast("wire.Invited", self._call("POST", "/users", {"name": name, **fields}))

    def invite_again(self, name: str) -> wire.Invited:
        """A new link for who lost it or forgot the password."""
        return cast("wire.Invited", self._call("POST", f"/users/{segment('NAME', name)}/invitation", {}))

    def change_user(self, name: str, **fields: object) -> wire.User:
        """fields: full_name, email, of your own also default_project; for an admin also enabled and admin."""
        return cast("wire.User", self._call("PATCH", f"/users/{segment('NAME', name)}", fields))

    # leases

    def project_leases(self, name: str) -> wire.LeaseRules:
        return cast("wire.LeaseRules", self._call("GET", f"/projects/{segment('NAME', name)}/leases"))

    def change_project_leases(self, name: str, **fields: object) -> wire.LeaseRules:
        """fields: default, window (such as `7d`), reminders (a list of such), exempt; None: as the node."""
        return cast("wire.LeaseRules", self._call("PATCH", f"/projects/{segment('NAME', name)}/leases", fields))

    def clock(self) -> wire.Clock:
        return cast("wire.Clock", self._call("GET", "/clock"))

    def confirm_clock(self) -> wire.Clock:
        """Say that the node's clock is right (admins)."""
        return cast("wire.Clock", self._call("POST", "/clock/confirm", {}))

    # projects

    def projects(self) -> list[wire.Project]:
        return pages(self._get, "/projects", "projects", {})

    def get_project(self, name: str) -> wire.Project:
        return cast("wire.Project", self._call("GET", f"/projects/{segment('NAME', name)}"))

    def create_project(self, name: str, **fields: object) -> wire.Project:
        """fields: description, pi (a user), quota and ceiling (slices, slivers, vcpus, memory, disk, ports, lease)."""
        return cast("wire.Project", self._call("POST", "/projects", {"name": name, **fields}))

    def change_project(self, name: str, **fields: object) -> wire.Project:
        """fields: description; for an admin also quota and ceiling, with what shall change."""
        return cast("wire.Project", self._call("PATCH", f"/projects/{segment('NAME', name)}", fields))

    def delete_project(self, name: str) -> None:
        self._call("DELETE", f"/projects/{segment('NAME', name)}")

    def set_member(self, project: str, user: str, role: str = "member") -> wire.Project:
        """Change a member's role, or bring somebody in: of a PI this is an invitation, of an admin a membership."""
        path = f"/projects/{segment('PROJECT', project)}/members/{segment('USER', user)}"
        return cast("wire.Project", self._call("PUT", path, {"role": role}))

    def invite_member(self, project: str, invitee: str, role: str = "member") -> wire.ProjectInvitation:
        """invitee: a user name or a mail address; the answer does not say whether there is such an account."""
        path = f"/projects/{segment('PROJECT', project)}/invitations"
        return cast("wire.ProjectInvitation", self._call("POST", path, {"invitee": invitee, "role": role}))

    def project_invitations(self, project: str) -> list[wire.ProjectInvitation]:
        """Those that wait, for the project's PIs."""
        return pages(self._get, f"/projects/{segment('PROJECT', project)}/invitations", "invitations", {})

    def withdraw_invitation(self, project: str, id: str) -> None:
        self._call("DELETE", f"/projects/{segment('PROJECT', project)}/invitations/{segment('ID', id)}")

    def my_invitations(self) -> list[wire.ProjectInvitation]:
        """Those that you can accept or decline."""
        return pages(self._get, "/me/invitations", "invitations", {})

    def accept_project_invitation(self, id: str) -> wire.Me:
        """Become a member; your account with its projects."""
        return cast("wire.Me", self._call("POST", f"/me/invitations/{segment('ID', id)}/accept", {}))

    def decline_project_invitation(self, id: str) -> None:
        self._call("POST", f"/me/invitations/{segment('ID', id)}/decline", {})

    def remove_member(self, project: str, user: str) -> None:
        self._call("DELETE", f"/projects/{segment('PROJECT', project)}/members/{segment('USER', user)}")

    # keys, tokens, sessions. user: whose, for an admin

    def keys(self, user: str | None = None) -> list[wire.Key]:
        return pages(self._get, "/keys", "keys", {"user": user})

    def add_key(self, text: str) -> list[wire.Key]:
        """text: the content of a .pub file."""
        return items(self._call("POST", "/keys", {"key": text}), "keys")

    def remove_key(self, id: str, user: str | None = None) -> None:
        self._call("DELETE", f"/keys/{segment('ID', id)}" + query({"user": user}))

    def tokens(self, user: str | None = None) -> list[wire.Token]:
        return pages(self._get, "/tokens", "tokens", {"user": user})

    def create_token(self, label: str, **wanted: str | None) -> wire.NewToken:
        """`token` is told this once. wanted: scope (read or write), expires (such as `30d`)."""
        given = {key: value for key, value in wanted.items() if value is not None}
        return cast("wire.NewToken", self._call("POST", "/tokens", {"label": label, **given}))

    def revoke_token(self, id: str) -> None:
        self._call("DELETE", f"/tokens/{segment('ID', id)}")

    def sessions(self, user: str | None = None) -> list[wire.Session]:
        return pages(self._get, "/sessions", "sessions", {"user": user})

    def revoke_session(self, id: str) -> None:
        self._call("DELETE", f"/sessions/{segment('ID', id)}")

    # requests beyond a quota

    def requests(self, **filters: str | None) -> list[wire.Request]:
        """The newest first. filters: state, project, user, since, until."""
        return pages(self._get, "/requests", "requests", filters)

    def request(self, id: str) -> wire.Request:
        return cast("wire.Request", self._call("GET", f"/requests/{segment('ID', id)}"))

    def grant_request(self, id: str, *, reason: str = "", **changes: object) -> wire.Created:
        """`{"request", "operation", "slice"}`. changes: count, ports, lease or a limit, to grant less."""
        body = {"reason": reason, "changes": changes}
        return cast("wire.Created", self._call("POST", f"/requests/{segment('ID', id)}/grant", body))

    def decline_request(self, id: str, reason: str) -> wire.Request:
        return cast("wire.Request", self._call("POST", f"/requests/{segment('ID', id)}/decline", {"reason": reason}))

    def withdraw_request(self, id: str) -> wire.Request:
        return cast("wire.Request", self._call("POST", f"/requests/{segment('ID', id)}/withdraw", {}))

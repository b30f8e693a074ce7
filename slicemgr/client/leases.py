"""The lease rules of projects, and the clock that determines the end of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from slicemgr.client.paths import segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Leases(Resource):
    def get(self, name: str) -> wire.LeaseRules:
        """The lease rules of a project."""
        return cast("wire.LeaseRules", self._connection.call("GET", f"/projects/{segment('NAME', name)}/leases"))

    def change(self, name: str, **fields: object) -> wire.LeaseRules:
        """Change the rules. fields: default, window (such as `7d`), reminders (a list), exempt; None: as the node."""
        path = f"/projects/{segment('NAME', name)}/leases"
        return cast("wire.LeaseRules", self._connection.call("PATCH", path, fields))

    def clock(self) -> wire.Clock:
        return cast("wire.Clock", self._connection.call("GET", "/clock"))

    def confirm_clock(self) -> wire.Clock:
        """Confirm that the clock of the node is right (admins)."""
        return cast("wire.Clock", self._connection.call("POST", "/clock/confirm", {}))

"""Slices."""

from __future__ import annotations

import builtins
import uuid
from typing import TYPE_CHECKING, Any, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import named, of_slice, operation_in, pages
from slicemgr.client.resource import Resource
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client.handle import SliceHandle
    from slicemgr.ipc.websocket import Channel


class Slices(OldList, Resource):
    """Methods take the name of a slice as NAME, of the client's project, or as PROJECT/NAME."""

    def list(self, **filters: str | None) -> builtins.list[wire.Slice]:
        """The slices. filters: state, type, image, project, owner, prefix (of the name)."""
        filters = {"project": self._connection.project, **filters}
        return pages(self._connection.get, "/slices", "slices", filters)

    def get(self, name: str) -> wire.Slice:
        return cast("wire.Slice", self._connection.call("GET", self._path(name)))

    def create(
        self, name: str | None = None, *, type: str = "lxc", image: str | None = None, **wanted: Any
    ) -> SliceHandle:
        """Request a slice. Returns its handle, which, used as a context, deletes the slice at the end.

        name: None: the service generates one. image: None: the default of the testbed, otherwise the only ready one.
        wanted: the other fields of a `wire.SliceRequest`, such as count, memory, lease. The default of ssh_keys is the
        user's own keys. Raises Refused(QUOTA) if the request must be granted first.
        """
        from slicemgr.client.handle import SliceHandle
        from slicemgr.client.ssh import public_keys

        given = {"name": name, "image": image}
        request: dict[str, Any] = {
            "type": type,
            **{key: value for key, value in given.items() if value is not None},
            **wanted,
        }
        if "ssh_keys" not in request and (keys := public_keys(self._connection.identity)):
            request["ssh_keys"] = keys
        made = self.submit(cast("wire.SliceRequest", request))
        if "request" in made:
            hint = f"request {made['request']['id']} waits for a decision"
            raise Refused(Code.QUOTA, f"the request exceeds the quota: {made['request']['exceeds']}", hint=hint)
        return SliceHandle(self._connection, made["slice"], made["operation"])

    def handle(self, name: str) -> SliceHandle:
        """The handle of a slice that exists."""
        from slicemgr.client.handle import SliceHandle

        return SliceHandle(self._connection, self.get(name))

    def submit(self, request: wire.SliceRequest) -> wire.Created:
        """Request a slice. Returns `{"operation", "slice"}`; `{"plan"}` for dry_run; `{"request"}` beyond the quota.

        If the connection breaks before the answer, the request is sent again, but executed only once.
        """
        project, name = named(str(request.get("name", "")), None)
        body: dict[str, Any] = {**request}
        if project:
            body |= {"project": project, "name": name}
        elif self._connection.project:
            body.setdefault("project", self._connection.project)
        return cast("wire.Created", self._connection.call("POST", "/slices", body, key=uuid.uuid4().hex))

    def act(self, name: str, action: str) -> wire.Operation:
        """Start, stop, restart, pause or resume a slice. Returns the operation."""
        return operation_in(self._connection.call("POST", self._path(name, f"/{action}"), {}))

    def start(self, name: str) -> wire.Operation:
        return self.act(name, "start")

    def stop(self, name: str) -> wire.Operation:
        return self.act(name, "stop")

    def restart(self, name: str) -> wire.Operation:
        return self.act(name, "restart")

    def pause(self, name: str) -> wire.Operation:
        return self.act(name, "pause")

    def resume(self, name: str) -> wire.Operation:
        return self.act(name, "resume")

    def renew(self, name: str, lease: str) -> wire.Renewed:
        """Renew a lease. Returns the slice with the granted end; `trimmed`: why it is not the requested end.

        lease: such as `7d`, from now on.
        """
        return cast("wire.Renewed", self._connection.call("POST", self._path(name, "/renew"), {"lease": lease}))

    def resize(self, name: str, disk: str | None = None, **limits: str | int | None) -> wire.Operation:
        """Change limits of a slice. disk: the new limit of each sliver, such as `8G`.

        limits: memory, memory_guarantee (such as `256M`) and memory_weight; None: not changed.
        """
        return operation_in(dict(self.submit_resize(name, disk, "", **limits)))

    def submit_resize(
        self, name: str, disk: str | None = None, reason: str = "", **limits: str | int | None
    ) -> wire.Created:
        """As `resize`. Returns `{"operation", "slice"}`; with a reason, beyond the quota, `{"request"}`."""
        given = {"disk": disk, "reason": reason or None, **limits}
        body = {field: value for field, value in given.items() if value is not None}
        return cast("wire.Created", self._connection.call("POST", self._path(name, "/resize"), body))

    def delete(self, name: str) -> wire.Operation:
        return operation_in(self._connection.call("DELETE", self._path(name)))

    def console(self, name: str, sliver: int = 0, *, screen: bool = False) -> Channel:
        """Connect to the console of a running sliver, as bytes in both directions; replaces an existing connection.

        screen: the graphical console of a virtual machine, as RFB (VNC).
        """
        wanted = {"sliver": sliver, "screen": screen}
        ticket = cast("wire.Console", self._connection.call("POST", self._path(name, "/console"), wanted))
        return self._connection.channel(ticket["path"], ticket["token"])

    def _path(self, name: str, what: str = "") -> str:
        return of_slice(name, self._connection.project, what)

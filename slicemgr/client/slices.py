"""Slices."""

from __future__ import annotations

import builtins
import uuid
from typing import TYPE_CHECKING, Any, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import operation_in, pages, query, segment
from slicemgr.client.resource import Resource
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client.handle import SliceHandle
    from slicemgr.ipc.websocket import Channel


class Slices(OldList, Resource):
    def list(self, **filters: str | None) -> builtins.list[wire.Slice]:
        """filters: state, type, image, project, owner, prefix (of the name)."""
        filters = {"project": self._connection.project, **filters}
        return pages(self._connection.get, "/slices", "slices", filters)

    def get(self, name: str) -> wire.Slice:
        return cast("wire.Slice", self._connection.call("GET", self._path(name)))

    def create(self, name: str, *, type: str = "lxc", image: str, **wanted: Any) -> SliceHandle:
        """Ask for a slice; its handle, which as a context deletes the slice at the end.

        wanted: the other fields of a `wire.SliceRequest`, such as count, memory, lease; ssh_keys are your own if left
        out. Refused(QUOTA) if the request must wait until somebody grants it.
        """
        from slicemgr.client.handle import SliceHandle
        from slicemgr.client.ssh import public_keys

        request: dict[str, Any] = {"name": name, "type": type, "image": image, **wanted}
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
        """`{"operation", "slice"}`; `{"plan"}` when the request says dry_run; `{"request"}` beyond the quota.

        Sent again, and still executed only once, if the connection breaks before the answer.
        """
        project = self._connection.project
        body = {"project": project, **request} if project else request
        return cast("wire.Created", self._connection.call("POST", "/slices", body, key=uuid.uuid4().hex))

    def act(self, name: str, action: str) -> wire.Operation:
        """The operation that does start, stop, restart, pause or resume."""
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
        """The slice, with the end of the lease as granted; `trimmed`: why it is not the end that was asked for.

        lease: such as `7d`, from now on.
        """
        return cast("wire.Renewed", self._connection.call("POST", self._path(name, "/renew"), {"lease": lease}))

    def resize(self, name: str, disk: str) -> wire.Operation:
        """disk: the new limit of each sliver, such as `8G`."""
        return operation_in(self._connection.call("POST", self._path(name, "/resize"), {"disk": disk}))

    def delete(self, name: str) -> wire.Operation:
        return operation_in(self._connection.call("DELETE", self._path(name)))

    def console(self, name: str, sliver: int = 0, *, screen: bool = False) -> Channel:
        """The console of a running sliver as bytes both ways; it replaces an existing connection.

        screen: that of a virtual machine, as RFB (VNC).
        """
        wanted = {"sliver": sliver, "screen": screen}
        ticket = cast("wire.Console", self._connection.call("POST", self._path(name, "/console"), wanted))
        return self._connection.channel(ticket["path"], ticket["token"])

    def _path(self, name: str, what: str = "") -> str:
        return f"/slices/{segment('NAME', name)}{what}" + query({"project": self._connection.project})

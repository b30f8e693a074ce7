"""A slice in the hand of a script or notebook: what `slicemgr.client.Client.create` and `.held` give."""

from __future__ import annotations

import copy
import math
import os
import time
from typing import TYPE_CHECKING, Any, cast

from slicemgr.errors import Code, Failed, Refused, SlicemgrError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from slicemgr import wire
    from slicemgr.client import Client

_BETWEEN = 0.25  # seconds between two looks at a port
_ENVIRONMENT = ("HOME", "USER", "SSH_AUTH_SOCK")  # what ssh has from the user


class Experiments:
    """The client's methods that give a slice to hold: a part of `slicemgr.client.Client`."""

    identity: str | None = None  # private key for ssh into slivers; None: as ssh finds it

    def create(self, name: str, *, type: str = "lxc", image: str, **wanted: Any) -> HeldSlice:
        """Ask for a slice and hold it; as a context it is deleted at the end.

        wanted: the other fields of a `wire.SliceRequest`, such as count, memory, lease; ssh_keys are your own if left
        out. Refused(QUOTA) if it must wait for somebody to grant it.
        """
        from slicemgr.client_ssh import public_keys

        request: dict[str, Any] = {"name": name, "type": type, "image": image, **wanted}
        if "ssh_keys" not in request and (keys := public_keys(self.identity)):
            request["ssh_keys"] = keys
        client = cast("Client", self)
        made = client.create_slice(cast("wire.SliceRequest", request))
        if "request" in made:
            hint = f"request {made['request']['id']} waits for a decision"
            raise Refused(Code.QUOTA, f"the request exceeds the quota: {made['request']['exceeds']}", hint=hint)
        return HeldSlice(client, made["slice"], made["operation"], self.identity)

    def held(self, name: str) -> HeldSlice:
        """A slice that is there, with the methods of one that was created."""
        client = cast("Client", self)
        return HeldSlice(client, client.slice(name), identity=self.identity)


class HeldSlice:
    """One slice. As a context it is deleted at the end, whatever happened within.

    Errors are the client's: `Refused` or `Failed`.
    """

    def __init__(
        self, client: Client, slice: wire.Slice, operation: wire.Operation | None = None, identity: str | None = None
    ) -> None:
        self.info = slice
        self.identity = identity
        self._client = copy.copy(client)  # the same connection, but this slice's project
        self._client.project = slice["project"]
        self._operation = operation

    def __repr__(self) -> str:
        info = self.info
        count = f"{len(info['slivers'])} × {info['type']} of {info['image']}"
        return f"<slice {info['name']}: {count}, {info['state']}, until {info['expires_at']}>"

    @property
    def name(self) -> str:
        return self.info["name"]

    @property
    def slivers(self) -> list[wire.Sliver]:
        """As last seen: `refresh` looks again."""
        return self.info["slivers"]

    def refresh(self) -> Self:
        self.info = self._client.slice(self.name)
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Until the last change that was asked for here is done. timeout: seconds, then Failed(TIMEOUT)."""
        if self._operation is not None:
            ended = self._client.wait(self._operation["id"], timeout)
            self._operation = None
            if ended["state"] == "failed":
                raise Failed(ended["error"] or "the operation failed", hint=ended["hint"] or "")
        return self

    def wait_ssh(self, timeout: float | None = 300) -> Self:
        """Until every sliver answers by ssh. timeout: seconds, then Failed(TIMEOUT)."""
        from slicemgr.client_ssh import greets

        end = math.inf if timeout is None else time.monotonic() + timeout
        self.wait(timeout)
        while not all(greets(one) for one in self.refresh().slivers):
            if time.monotonic() > end:
                message = f"slice {self.name} does not accept SSH logins after {timeout:g} s"
                raise Failed(message, hint=f"see its console with `slicectl console {self.name}`", code=Code.TIMEOUT)
            time.sleep(_BETWEEN)
        return self

    def ssh(self, command: str, sliver: int = 0, *, timeout: float = 3600, login: str = "root") -> str:
        """What a command prints on a sliver. The host key must be the one that the service recorded.

        timeout: seconds. Raises Failed with the end of what it complained if it fails or takes longer.
        """
        from slicemgr.client_ssh import known_hosts, own_identities, ssh_words
        from slicemgr.drivers.command import CommandFailed, run

        if not 0 <= sliver < len(self.slivers):
            raise Refused(Code.NOT_FOUND, f"slice {self.name} has no sliver {sliver}", field="sliver")
        there = self.slivers[sliver]
        file = known_hosts(f"{self.info['project']}.{self.name}", there)
        words = ssh_words(there, file, self.identity, login)
        words[1:1] = ["-o", "BatchMode=yes", *own_identities(self.identity)]
        mine = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            return run([*words, command], timeout=timeout, env=mine).decode(errors="replace")
        except CommandFailed as error:
            late = error.status is None
            what = "took too long" if late else f"exit status {error.status}"
            message = f"{self.name}/{sliver}: {command}: {what}"
            code = Code.TIMEOUT if late else Code.FAILED
            raise Failed(message, hint=error.stderr.strip(), code=code) from error

    def act(self, action: str) -> Self:
        """start, stop, restart, pause or resume; `wait` waits for it."""
        self._operation = self._client.slice_action(self.name, action)
        return self

    def renew(self, lease: str) -> str:
        """Until when it lives now: what was granted. lease: such as `7d`, from now on."""
        self.info = self._client.renew_slice(self.name, lease)
        return str(self.info["expires_at"])

    def delete(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """wait: until nothing of it is left."""
        self._operation = self._client.delete_slice(self.name)
        if wait:
            self.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.delete()
        except SlicemgrError as failed:
            if failed.code is Code.NOT_FOUND:
                return
            if error is None:
                raise
            error.add_note(f"slice {self.name} could not be deleted: {failed}")

"""A handle of one slice for scripts and notebooks: what `slices.create` and `slices.handle` of a client return."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from slicemgr.client import deprecated
from slicemgr.client.operations import Operations
from slicemgr.client.slices import Slices
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from slicemgr import wire
    from slicemgr.client.connection import Connection

_BETWEEN = 0.25  # seconds between two attempts to connect
_ENVIRONMENT = ("HOME", "USER", "SSH_AUTH_SOCK")  # variables that ssh gets from the user


class SliceHandle:
    """One slice. As a context, it deletes the slice at the end in any case.

    The methods raise `Refused` or `Failed`, as those of the client.
    """

    def __init__(self, connection: Connection, slice: wire.Slice, operation: wire.Operation | None = None) -> None:
        """operation: the last requested change, for `wait`."""
        own = connection.of_project(slice["project"])
        self.info = slice
        self.identity = connection.identity
        self._slices, self._operations = Slices(own), Operations(own)
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
        """The slivers at the time of the last `refresh`."""
        return self.info["slivers"]

    def refresh(self) -> Self:
        self.info = self._slices.get(self.name)
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the last change requested by this handle is done. timeout: seconds, then Failed(TIMEOUT)."""
        if self._operation is not None:
            ended = self._operations.wait(self._operation["id"], timeout)
            self._operation = None
            if ended["state"] == "failed":
                raise Failed(ended["error"] or "the operation failed", hint=ended["hint"] or "")
        return self

    def wait_ssh(self, timeout: float | None = 300) -> Self:
        """Wait until the sshd of every sliver answers. timeout: seconds, then Failed(TIMEOUT)."""
        from slicemgr.client.ssh import greets

        end = math.inf if timeout is None else time.monotonic() + timeout
        self.wait(timeout)
        while not all(greets(one) for one in self.refresh().slivers):
            if time.monotonic() > end:
                message = f"slice {self.name} does not accept SSH logins after {timeout:g} s"
                raise Failed(message, hint=f"see its console with `slicectl console {self.name}`", code=Code.TIMEOUT)
            time.sleep(_BETWEEN)
        return self

    def ssh(self, command: str, sliver: int = 0, *, timeout: float = 3600, login: str = "root") -> str:
        """Run a command on a sliver and return its standard output. The host key must be the one the service recorded.

        timeout: seconds. Raises Failed with the end of the standard error if the command fails or takes longer.
        """
        from slicemgr.client.ssh import known_hosts, own_identities, ssh_words
        from slicemgr.drivers.command import CommandFailed, run

        if not 0 <= sliver < len(self.slivers):
            raise Refused(Code.NOT_FOUND, f"slice {self.name} has no sliver {sliver}", field="sliver")
        target = self.slivers[sliver]
        file = known_hosts(f"{self.info['project']}.{self.name}", target)
        words = ssh_words(target, file, self.identity, login)
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
        """Start, stop, restart, pause or resume the slice; `wait` waits until it is done."""
        self._operation = self._slices.act(self.name, action)
        return self

    def renew(self, lease: str) -> str:
        """Renew the lease and return its granted end. lease: such as `7d`, from now on."""
        self.info = self._slices.renew(self.name, lease)
        return str(self.info["expires_at"])

    def delete(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Delete the slice. wait: until it is deleted. timeout: seconds, then Failed(TIMEOUT)."""
        self._operation = self._slices.delete(self.name)
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[SliceHandle]:
        if name != "HeldSlice":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        deprecated.warn("HeldSlice", "SliceHandle")
        return SliceHandle

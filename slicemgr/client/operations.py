"""Operations: what the testbed has done, does and will do."""

from __future__ import annotations

import builtins
import math
import time
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, query, segment
from slicemgr.client.resource import Resource
from slicemgr.errors import Code, Failed, SlicemgrError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr import wire

_LONGEST_POLL = 30  # seconds; the service allows 60, a proxy in front of it may not


class Operations(OldList, Resource):
    def list(self, *, limit: int | None = 100, **filters: str | None) -> builtins.list[wire.Operation]:
        """The newest, `limit` at most; None: all. filters: state, kind, slice, project, user, since, until."""
        return pages(self._connection.get, "/operations", "operations", filters, limit)

    def get(self, operation_id: str | int, *, wait: int | None = None, seen: int | None = None) -> wire.Operation:
        """wait: seconds to hold the answer back until the operation ended or its version is beyond `seen`."""
        path = f"/operations/{segment('ID', str(operation_id))}" + query({"wait": wait, "seen": seen})
        timeout = self._connection.timeout + (wait or 0)
        return cast("wire.Operation", self._connection.call("GET", path, timeout=timeout))

    def wait(
        self,
        operation_id: str | int,
        timeout: float | None = None,
        on_progress: Callable[[wire.Operation], None] | None = None,
        *,
        patience: float = 15.0,
    ) -> wire.Operation:
        """The operation, once it has ended (`done` or `failed`: check its state).

        timeout: seconds, None for ever; then Failed with code TIMEOUT, and the operation goes on. on_progress: called
        with the operation each time it has changed. patience: seconds for which the service may be away, as in a
        restart.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        lost_since: float | None = None
        version: int | None = None if on_progress is None else 0  # None: the answer is held back until the end
        while True:
            left = end - time.monotonic()
            began = time.monotonic()
            try:
                poll = max(0, math.ceil(min(left, _LONGEST_POLL)))
                operation = self.get(operation_id, wait=poll, seen=version)
            except SlicemgrError as error:
                lost_since = lost_since or began
                if error.code is not Code.UNAVAILABLE or time.monotonic() - lost_since > min(patience, left):
                    raise
                time.sleep(min(0.5, patience))
                continue
            lost_since = None
            if operation["version"] != version and on_progress is not None:
                on_progress(operation)
            if operation["state"] in ("done", "failed"):
                return operation
            if time.monotonic() >= end:
                raise Failed(
                    f"operation {operation_id} has not ended within {timeout:g} s",
                    hint="the operation continues",
                    code=Code.TIMEOUT,
                )
            if operation["version"] == version and time.monotonic() - began < min(0.1, poll):
                time.sleep(0.2)  # a service that does not hold its answer back is not asked in a busy loop
            version = operation["version"]

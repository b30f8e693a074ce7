"""Operations: the finished, running and queued work of the testbed."""

from __future__ import annotations

import builtins
import math
import time
from typing import TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, query, segment, slice_filters
from slicemgr.client.resource import Resource
from slicemgr.errors import Code, Failed, SlicemgrError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr import wire

_LONGEST_POLL = 30  # seconds; the service allows 60, but a proxy in front of it may allow less


class Operations(OldList, Resource):
    def list(self, *, limit: int | None = 100, **filters: str | None) -> builtins.list[wire.Operation]:
        """The newest, at most `limit`; None: all. filters: state, kind, slice, project, user, since, until."""
        return pages(self._connection.get, "/operations", "operations", slice_filters(filters), limit)

    def get(self, operation_id: str | int, *, wait: int | None = None, seen: int | None = None) -> wire.Operation:
        """An operation. wait: seconds to delay the answer until the operation ends or its version exceeds `seen`."""
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
        """Wait until the operation ends, and return it. Its state is `done` or `failed`.

        timeout: seconds, None: unlimited. After it, the method raises Failed with code TIMEOUT, and the operation
        continues. on_progress: called with the operation after each change. patience: seconds for which the service may
        be unavailable, for example during a restart.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        lost_since: float | None = None
        version: int | None = None if on_progress is None else 0  # None: the answer is delayed until the end
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
                time.sleep(0.2)  # no busy loop with a service that does not delay its answer
            version = operation["version"]

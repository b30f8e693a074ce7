"""The client's methods about what was measured: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import Any

from slicemgr.client_json import pages, query, segment


class Samples:
    """`_call`, `_get` and `project` are the client's. Moments are RFC 3339 or how long ago (`1h`)."""

    project: str | None

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _get(self, path: str) -> dict[str, Any]:
        raise NotImplementedError

    def slice_samples(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """wanted: since, until, resolution (auto, raw, 5m, 1h), columns, total (true: all slivers together).

        `slivers` have `series`, lists as long as `at`, and `totals`; rates are a second, cpu is cores.
        """
        path = f"/slices/{segment('NAME', name)}/samples"
        return self._call("GET", path + query({"project": self.project, **wanted}))

    def node_samples(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """The same of a node: `series` and `totals`."""
        return self._call("GET", f"/nodes/{segment('NAME', name)}/samples" + query(wanted))

    def top(self) -> dict[str, Any]:
        """The last sample of each running `slivers` of one's projects, and of the `nodes`."""
        return self._call("GET", "/top")

    def accounts(
        self, project: str | None = None, *, month: str | None = None, since: str | None = None
    ) -> list[dict[str, Any]]:
        """What projects used by month. month: such as 2026-11; since: from that month on."""
        return pages(self._get, "/accounts", "accounts", {"project": project, "month": month, "since": since})

"""Measurements of slices, nodes and projects. Times are RFC 3339 text, or the time before now (`1h`)."""

from __future__ import annotations

from typing import Any

from slicemgr.client.paths import of_slice, pages, query, segment
from slicemgr.client.resource import Resource


class Samples(Resource):
    def of_slice(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """The samples of a slice. wanted: since, until, resolution (auto, raw, 5m, 1h), columns, total (true: the sum).

        `slivers` have `series`, which are lists as long as `at`, and `totals`. Rates are per second, cpu is in cores.
        """
        return self._connection.get(of_slice(name, self._connection.project, "/samples", **wanted))

    def of_node(self, name: str, **wanted: str | None) -> dict[str, Any]:
        """The samples of a node: `series` and `totals`."""
        return self._connection.get(f"/nodes/{segment('NAME', name)}/samples" + query(wanted))

    def latest(self) -> dict[str, Any]:
        """The last sample of each running sliver in the user's projects (`slivers`), and of the nodes (`nodes`)."""
        return self._connection.get("/top")

    def accounts(
        self, project: str | None = None, *, month: str | None = None, since: str | None = None
    ) -> list[dict[str, Any]]:
        """The usage of projects by month. month: such as 2026-11; since: from that month on."""
        wanted = {"project": project, "month": month, "since": since}
        return pages(self._connection.get, "/accounts", "accounts", wanted)

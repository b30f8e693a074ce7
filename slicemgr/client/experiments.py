"""Published experiments."""

from __future__ import annotations

import builtins
from typing import IO, TYPE_CHECKING, cast

from slicemgr.client.deprecated import OldList
from slicemgr.client.paths import pages, query, segment
from slicemgr.client.resource import Resource

if TYPE_CHECKING:
    from slicemgr import wire


class Experiments(OldList, Resource):
    def list(self, **filters: str | None) -> builtins.list[wire.Experiment]:
        """The experiments, newest first; for admins including hidden ones. filters: kind, node, since, until."""
        return pages(self._connection.get, "/experiments", "experiments", filters)

    def get(self, id: str) -> wire.Experiment:
        return cast("wire.Experiment", self._connection.call("GET", _path(id)))

    def file(self, id: str, name: str) -> bytes:
        """The content of a file of the experiment."""
        status, payload = self._connection.exchange("GET", f"{_path(id)}/files/{segment('FILE', name)}")
        if status >= 300:
            self._connection.answer(status, payload)  # raises the error of the service
        return payload

    def publish(
        self, archive: IO[bytes], size: int, *, name: str = "", note: str = "", public: bool = True
    ) -> wire.Experiment:
        """Publish the report of a run, a tar archive of `size` bytes. The same archive gives the same experiment."""
        wanted = {"name": name or None, "note": note or None, "public": "true" if public else "false"}
        return cast("wire.Experiment", self._connection.upload("/experiments" + query(wanted), archive, size))

    def change(self, id: str, **changes: object) -> wire.Experiment:
        """Change an experiment. changes: name, note, public."""
        return cast("wire.Experiment", self._connection.call("PATCH", _path(id), changes))

    def delete(self, id: str) -> None:
        """Delete an experiment and its files on the service; the folder of the run remains."""
        self._connection.call("DELETE", _path(id))


def _path(id: str) -> str:
    return f"/experiments/{segment('ID', id)}"

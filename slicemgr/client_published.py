"""The client's methods about published experiments: a part of `slicemgr.client.Client`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, cast

from slicemgr.client_json import pages, query, segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr import wire


class Published:
    """`_call`, `_get`, `_exchange`, `_answer` and `_upload` are the client's."""

    def _call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _get(self, path: str) -> dict[str, Any]:
        raise NotImplementedError

    def _exchange(
        self, method: str, path: str, body: object = None, *, timeout: float | None = None, key: str = ""
    ) -> tuple[int, bytes]:
        raise NotImplementedError

    def _answer(self, status: int, payload: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def _upload(
        self, path: str, file: IO[bytes], size: int, on_progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        raise NotImplementedError

    def experiments(self, **filters: str | None) -> list[wire.Experiment]:
        """The newest first; of admins the hidden ones, too. filters: kind, node, since, until."""
        return pages(self._get, "/experiments", "experiments", filters)

    def experiment(self, id: str) -> wire.Experiment:
        return cast("wire.Experiment", self._call("GET", _path(id)))

    def experiment_file(self, id: str, name: str) -> bytes:
        """The content of one of its files."""
        status, payload = self._exchange("GET", f"{_path(id)}/files/{segment('FILE', name)}")
        if status >= 300:
            self._answer(status, payload)  # raises what it tells
        return payload

    def publish_experiment(
        self, archive: IO[bytes], size: int, *, name: str = "", note: str = "", public: bool = True
    ) -> wire.Experiment:
        """Send a run's report, `size` bytes of a tar archive; the same archive again is the experiment there is."""
        wanted = {"name": name or None, "note": note or None, "public": "true" if public else "false"}
        return cast("wire.Experiment", self._upload("/experiments" + query(wanted), archive, size))

    def change_experiment(self, id: str, **changes: object) -> wire.Experiment:
        """changes: name, note, public."""
        return cast("wire.Experiment", self._call("PATCH", _path(id), changes))

    def delete_experiment(self, id: str) -> None:
        """With its files; the run's own folder is not touched."""
        self._call("DELETE", _path(id))


def _path(id: str) -> str:
    return f"/experiments/{segment('ID', id)}"

"""Operations whose slivers wait for an image that this node must fetch first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slicemgr.agent.journal import Journal
from slicemgr.agent.node_images import NodeImages, Status
from slicemgr.model import OperationState, Sliver
from slicemgr.policy.image_needs import needs
from slicemgr.store import pending

_STEP = "image"


class ImageWaits:
    """Used by one thread."""

    def __init__(self, images: NodeImages, journal: Journal) -> None:
        self._images, self._journal = images, journal
        self._shown: dict[str, tuple[str, Status]] = {}  # operation → sliver and what was reported of it last

    def absent(self, slivers: Iterable[Sliver]) -> set[str]:
        """The ids of slivers that wait for their image, which is fetched."""
        waiting = {one.id: (one.image, needs(one.type, one.boot)) for one in slivers if self._images.missing(one)}
        for image, needed in set(waiting.values()):
            self._images.want(image, needed)
        return set(waiting)

    def holds_back(self, operation: pending.Operation, rows: Mapping[str, Sliver]) -> bool:
        """Whether the operation must wait; how far its image is becomes a step of it. rows: its slivers by id.

        The step is of one of the slivers that wait, because other nodes have steps of the same operation.
        """
        slivers = [rows[one] for one in operation.slivers if one in rows]
        waiting = [one for one in slivers if self._images.missing(one)]
        if waiting:
            first = min(waiting, key=lambda one: (one.image, one.id))
            self._show(operation, first.id, self._images.want(first.image, needs(first.type, first.boot)))
            return True
        shown = self._shown.pop(operation.id, None)
        if shown is not None:
            self._journal.add(pending.StepSeen(operation.id, shown[0], _STEP, OperationState.DONE, percent=100))
        if operation.kind == "create":
            for image in {one.image for one in slivers}:
                self._images.used(image)
        return False

    def forget(self, pending_ids: set[str]) -> None:
        """Forget operations that have ended."""
        for gone in set(self._shown) - pending_ids:
            del self._shown[gone]

    def _show(self, operation: pending.Operation, waiting: str, status: Status) -> None:
        sliver, before = self._shown.get(operation.id, (waiting, None))
        if before == status:
            return
        if before is None:
            self._journal.add(pending.OperationStarted(operation.id))
        self._shown[operation.id] = (sliver, status)
        step = pending.StepSeen(
            operation.id, sliver, _STEP, OperationState.RUNNING, status.error or status.step, status.percent
        )
        self._journal.add(step)

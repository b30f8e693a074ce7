"""Insert operations and events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection

from slicemgr.model import OperationState
from slicemgr.store import incarnation, operation_parts
from slicemgr.store import tables as t


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an operation: a slice with its slivers, an image, or the node alone.

    node: of an operation without slivers. slivers: id and node of each.
    """

    node: str = ""
    slice_id: str = ""
    slice_name: str = ""
    image: str = ""  # sha256
    image_name: str = ""
    slivers: Mapping[str, str] = field(default_factory=dict)
    project: str = ""  # the project whose members see the operation; "": admins alone


def add(
    c: Connection, kind: str, subject: Subject, user: str, now: datetime, params: Mapping[str, Any] | None = None
) -> str:
    """Insert a queued operation with a part for each node; its id.

    Refused(CONFLICT) during the hold after a restore, unless the operation only reads.
    """
    if kind not in incarnation.ALLOWED:
        incarnation.refuse_during_hold(c, "change slices, images or nodes")
    id_ = uuid.uuid4().hex[:16]
    nodes = list(dict.fromkeys(subject.slivers.values())) or [subject.node]
    c.execute(
        t.operations.insert(),
        {
            "id": id_,
            "kind": kind,
            "state": OperationState.QUEUED,
            "node": nodes[0],
            "slice_id": subject.slice_id,
            "slice_name": subject.slice_name,
            "image": subject.image,
            "image_name": subject.image_name,
            "project": subject.project,
            "user": user,
            "params": dict(params or {}),
            "created_at": now,
        },
    )
    operation_parts.add(c, id_, nodes, list(subject.slivers.items()))
    return id_


def note(
    c: Connection,
    user: str,
    action: str,
    now: datetime,
    *,
    slice: str = "",
    project: str = "",
    detail: str = "",
    address: str = "",
) -> None:
    """Insert an event. project: its members see it; "": admins and `user` do. address: of the client."""
    values = {"at": now, "user": user, "action": action, "detail": detail, "address": address}
    c.execute(t.events.insert(), {**values, "project": project, "slice": slice})

"""The columns of snapshots."""

from __future__ import annotations

from slicemgr.cli.render.human import size, text, when
from slicemgr.cli.render.output import Column, Table, field


def _notes(row: dict[str, object]) -> object:
    """The details of the snapshot of each sliver."""
    parts = row["slivers"]
    assert isinstance(parts, list)
    return "; ".join(dict.fromkeys(one["detail"] for one in parts if one["detail"])) or None


SNAPSHOTS = Table(
    (
        field("name", whole=True),
        field("slice"),
        field("state"),
        field("size", size),
        field("user"),
        field("created_at", when),
        field("made_at", when),
        Column("notes", _notes, text),
    ),
    ("name", "state", "size", "user", "created_at", "notes"),
)

"""The rows of a node that the centre sends to it: which columns, and the change from one state to another. Pure.

A document has, by table, the rows that the agent of one node reads. Its revision is the hash of all columns that the
centre writes, so two documents with the same revision are equal for the node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NEVER = "9999-01-01T00:00:00+00:00"  # no lease ends on a node by itself: the centre ends it
_PAST = "1970-01-01T00:00:00+00:00"

Row = Mapping[str, Any]
Document = Mapping[str, Sequence[Row]]  # by table; the values are JSON
Key = tuple[str | int, ...]
Digests = Mapping[tuple[str, Key], bytes]


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A table that nodes have.

    key: names a row. centre: columns that the centre writes. own: columns that the node writes; a row that is new to
    the node begins with what the centre last knew. fixed: values of columns that have no meaning on a node. node:
    whether it has the name of the node in a column `node`, which each node fills in for itself.
    """

    table: str
    key: tuple[str, ...]
    centre: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    node: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.centre, *self.own)

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)


_LIMITS = (
    *("memory", "disk", "pids", "cpu", "cpu_shares", "memory_soft", "memory_guarantee", "memory_weight"),
    *("memory_max", "io_weight", "io_rate", "io_ops", "net_in", "net_out"),
)

# A table after those that it refers to. A column that is in none of the lists has its default on a node.
TABLES = (
    Mirrored("users", ("name",), fixed={"admin": False, "created_at": _PAST}),
    Mirrored("projects", ("name",), fixed={"created_at": _PAST}),
    Mirrored(
        "images",
        ("sha256",),
        (
            *("name", "format", "virtual_size", "file_size", "base_size", "arch", "os", "boot", "systemd"),
            *("stream_sha256", "stream_size", "stream_version", "created_at"),
        ),
        own=("state",),
    ),
    Mirrored(
        "slices",
        ("id",),
        (
            *("name", "project", "owner", "type", "image", "count", "ssh_keys"),
            *("boot", "machine", "init", "user_data", "created_at"),
        ),
        fixed={"expires_at": _NEVER},
    ),
    Mirrored(
        "slivers",
        ("id",),
        (
            *("serial", "slice", "idx", "desired", "generation", "address", "uid_first", "port_first", "port_count"),
            *_LIMITS,
            *("origin", "inherited", "epoch"),
        ),
        own=(
            *("phase", "error", "host_key", "acceleration", "booted", "keys_missing", "memory_started"),
            *("oom_kills", "updated_at"),
        ),
        node=True,
    ),
    Mirrored("spares", ("sliver",), ("type", "image", "boot", "machine", "init", "created_at")),
    Mirrored("snapshots", ("id",), ("slice", "name", "user", "created_at")),
    Mirrored("sliver_snapshots", ("snapshot", "sliver"), own=("made_at", "size", "detail")),
    Mirrored(
        "operations",
        ("id",),
        ("kind", "slice_id", "slice_name", "image", "image_name", "user", "params", "created_at", "project"),
        own=("state", "started_at"),
        node=True,
    ),
    Mirrored("operation_parts", ("operation",), own=("state", "started_at"), node=True),  # the node's own
    Mirrored("operation_slivers", ("operation", "sliver"), own=("state",), node=True),
)
BY_NAME: Mapping[str, Mirrored] = {one.table: one for one in TABLES}
# Kinds of updates that change only columns that the node writes, and rows that it does not get.
_OWN = frozenset(
    (
        *("event", "node-sample", "operation-started", "sliver", "sliver-done", "sliver-sample"),
        *("step", "used"),
    )
)


def changes_rows(kinds: Iterable[str]) -> bool:
    """Whether a node gets other rows because of updates of these kinds, which it has reported."""
    return not _OWN.issuperset(kinds)


@dataclass(frozen=True, slots=True)
class Change:
    """What leads from one revision to another. whole: `upsert` is all that the node shall have; `delete` is empty."""

    upsert: Document
    delete: Mapping[str, Sequence[Key]]
    whole: bool = False


def digests(document: Document) -> Digests:
    """The hash of each row, without the columns that the node writes."""
    found = {}
    for one in TABLES:
        for row in document.get(one.table, ()):
            found[one.table, one.key_of(row)] = _digest(one, row)
    return found


def _digest(one: Mirrored, row: Row) -> bytes:
    values = [row[name] for name in (*one.key, *one.centre)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()[:16]


def revision(rows: Digests) -> str:
    """Names the state of all rows: 64 hexadecimal digits."""
    lines = sorted(json.dumps([table, *key]).encode() + digest for (table, key), digest in rows.items())
    return hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in lines)).hexdigest()


def change(document: Document, now: Digests, before: Digests | None) -> Change:
    """The change that makes a mirror with the rows `before` equal to the document. now: of the document.

    before None: the rows of the mirror are not known.
    """
    if before is None:
        return Change({table: rows for table, rows in document.items() if rows}, {}, whole=True)
    upsert: dict[str, list[Row]] = {}
    for one in TABLES:
        for row in document.get(one.table, ()):
            name = (one.table, one.key_of(row))
            if before.get(name) != now[name]:
                upsert.setdefault(one.table, []).append(row)
    return Change(upsert, _by_table(sorted(before.keys() - now.keys(), key=repr)))


def _by_table(names: Iterable[tuple[str, Key]]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {}
    for table, key in names:
        found.setdefault(table, []).append(key)
    return found

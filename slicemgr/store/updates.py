"""The agent's observations as values: each changes one row. `observations.record` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from slicemgr.model import ImageState, NodeImageState, OperationState, Phase

Json = Mapping[str, Any]


def utcnow() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SliverSeen:
    """None keeps the stored value, "" clears it.

    keys_missing: why it does not have the newest SSH keys. acceleration: how a virtual machine runs (kvm or emulation).
    booted: whether its start has completed. memory_started: bytes with which a virtual machine started.
    """

    sliver: str
    phase: Phase
    error: str | None = None
    host_key: str | None = None
    acceleration: str | None = None
    booted: str | None = None
    keys_missing: str | None = None
    memory_started: int | None = None


@dataclass(frozen=True, slots=True)
class SliverUsed:
    """The latest resource use of a sliver; bytes as in `figures.Usage`. at: seconds since 1970.

    oom_kills: processes that the kernel killed for lack of memory since the sliver was created, the last at `oom_at`.
    """

    sliver: str
    at: int
    working: int | None = None
    charged: int | None = None
    disk: int | None = None
    guest: int | None = None
    oom_kills: int | None = None
    oom_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SliverSampled:
    """What a sliver used in an hour so far. at: its end, seconds since 1970. values: the columns of its row."""

    sliver: str
    at: int
    values: Json


@dataclass(frozen=True, slots=True)
class NodeSampled:
    """A row of the samples of a node. at: the end of its span, seconds since 1970. values: its columns."""

    resolution: int
    at: int
    values: Json


@dataclass(frozen=True, slots=True)
class SliverGone:
    """Nothing of it is left on the host: its row, address and ports are freed, and with the last sliver its slice."""

    sliver: str


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """size: bytes beyond the image. detail: notes for the user."""

    sliver: str
    snapshot: str
    size: int
    detail: str = ""
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class SnapshotGone:
    """The snapshot could not be created and is removed."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step of an operation. sliver: "" for a step of the whole operation. percent: None if unknown."""

    operation: str
    sliver: str
    name: str
    state: OperationState
    detail: str = ""
    percent: int | None = None
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class SliverDone:
    """One of an operation's slivers has ended (state: done or failed); progress bars count these."""

    operation: str
    sliver: str
    state: OperationState


@dataclass(frozen=True, slots=True)
class OperationStarted:
    operation: str
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """state: done or failed; an operation ends once, later updates are ignored."""

    operation: str
    state: OperationState
    error: str = ""
    hint: str = ""
    result: Json | None = None
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """Facts of an image; "" and None keep the stored value. kernel_config: see `policy.kernel_config`; "": none."""

    sha256: str
    state: ImageState
    arch: str = ""
    os: str = ""
    virtual_size: int | None = None
    boot: Json | None = None
    base_size: int | None = None
    systemd: bool | None = None
    kernel_config: str | None = None


@dataclass(frozen=True, slots=True)
class ImageGone:
    """Its base and file are deleted, or its import failed. The row of an image that slices use is kept as missing."""

    sha256: str


@dataclass(frozen=True, slots=True)
class ImageOnNode:
    """What the node has of an image. error: of state `failed`. base_size: bytes in its pool, of state `ready`.

    disk, base: the states of the disk image and of the base; None: of a node whose version does not know them. stream:
    whether the base is received as a stream, or the node has the file of the stream.
    """

    sha256: str
    node: str
    state: NodeImageState
    error: str = ""
    base_size: int = 0
    disk: NodeImageState | None = None
    base: NodeImageState | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class BaseStreamMade:
    """The agent beside the service has the stream of a base. The first one of an image is kept.

    sha256: of the image. stream: of the file of the stream. size: of that file, in bytes.
    """

    sha256: str
    stream: str
    size: int
    version: int


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A sign of life of the agent. facts: cpus, memory and disk_total (bytes), kinds {lxc, kvm}, io_weight, net_rate,
    and more.

    facts None keeps the stored facts (a heartbeat).
    """

    name: str
    address: str
    facts: Json | None = None


@dataclass(frozen=True, slots=True)
class UnclaimedSliver:
    """A sliver on a node without a row. state: running, paused, stopped, or remains if it has no root.

    record: its row as the node has recorded it, None if that is unreadable. snapshots: their ids. detail: why the
    agent could not remove it.
    """

    sliver: str
    state: str
    record: Json | None
    snapshots: tuple[str, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HostSeen:
    """How a node differs from the rows during the hold after a restore. Replaces the node's earlier report.

    lost: slivers of rows without a root. images: those of rows without their files, by sha256. changed: slivers of
    rows that the host has in a newer state, each with the columns that differ.
    """

    node: str
    unclaimed: tuple[UnclaimedSliver, ...]
    lost: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    changed: Mapping[str, Json] = field(default_factory=dict)


MEMORY_SHORT = "memory short"  # action of the events that a node begins and ends to take memory back
MEMORY_TAKEN = "memory taken"  # of the event that it took memory of a slice
KEEP_DISK = "keep disk"  # action of the event that a node stopped a sliver which it no longer has


@dataclass(frozen=True, slots=True)
class EventSeen:
    """An event for the audit trail."""

    user: str
    action: str
    slice: str = ""
    detail: str = ""
    project: str = ""
    at: datetime = field(default_factory=utcnow)


Update = (
    SliverSeen
    | SliverUsed
    | SliverSampled
    | NodeSampled
    | SliverGone
    | SnapshotMade
    | SnapshotGone
    | StepSeen
    | SliverDone
    | OperationStarted
    | OperationEnded
    | ImageSeen
    | ImageGone
    | ImageOnNode
    | BaseStreamMade
    | NodeSeen
    | HostSeen
    | EventSeen
)

"""What the agent saw, as values: each is one change of a row. `seen.record` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from slicemgr.model import ImageState, OperationState, Phase

Json = Mapping[str, Any]


def utcnow() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SliverSeen:
    """None keeps what is there, "" clears it.

    keys_missing: why it has not got the newest ssh keys.
    acceleration: what a virtual machine runs by (kvm or emulation). booted: whether its start was seen to end.
    """

    sliver: str
    phase: Phase
    error: str | None = None
    host_key: str | None = None
    acceleration: str | None = None
    booted: str | None = None
    keys_missing: str | None = None


@dataclass(frozen=True, slots=True)
class SliverGone:
    """Nothing of it is left on the host: its row, address and ports are free, and with the last one its slice."""

    sliver: str


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """size: bytes that it holds beyond the image. detail: what is worth knowing of it."""

    sliver: str
    snapshot: str
    size: int
    detail: str = ""
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class SnapshotGone:
    """It could not be made: nobody shall have it."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step of an operation. sliver: "" for a step of the whole. percent: None if unknown."""

    operation: str
    sliver: str
    name: str
    state: OperationState
    detail: str = ""
    percent: int | None = None
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class SliverDone:
    """One of an operation's slivers is dealt with (state: done or failed); what progress bars count."""

    operation: str
    sliver: str
    state: OperationState


@dataclass(frozen=True, slots=True)
class OperationStarted:
    operation: str
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """state: done or failed; an operation ends once, what comes later is ignored."""

    operation: str
    state: OperationState
    error: str = ""
    hint: str = ""
    result: Json | None = None
    at: datetime = field(default_factory=utcnow)


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """What was found in an image; "" and None keep what is there."""

    sha256: str
    state: ImageState
    arch: str = ""
    os: str = ""
    virtual_size: int | None = None
    boot: Json | None = None
    base_size: int | None = None


@dataclass(frozen=True, slots=True)
class ImageGone:
    """Its base and file are deleted, or its import failed: nothing of it is left."""

    sha256: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The agent lives. facts: cpus, memory and disk_total (bytes), kinds {lxc, kvm}, io_weight, net_rate, and more.

    facts None keeps what is there (a heartbeat).
    """

    name: str
    address: str
    facts: Json | None = None


@dataclass(frozen=True, slots=True)
class EventSeen:
    """A line for the audit trail."""

    user: str
    action: str
    slice: str = ""
    detail: str = ""
    project: str = ""
    at: datetime = field(default_factory=utcnow)


Update = (
    SliverSeen
    | SliverGone
    | SnapshotMade
    | SnapshotGone
    | StepSeen
    | SliverDone
    | OperationStarted
    | OperationEnded
    | ImageSeen
    | ImageGone
    | NodeSeen
    | EventSeen
)

"""The words of the project as frozen values. No behaviour but derivation; no input is checked here.

Sizes are bytes, times are timezone-aware UTC datetimes, CPU is in cores (0.5 = half a core).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
IDS_PER_SLIVER = 65536
DEFAULT_PROJECT = "default"  # where the slices of an admin go who belongs to no project


class Kind(StrEnum):
    """What a sliver is made of."""

    LXC = "lxc"
    KVM = "kvm"


class Desired(StrEnum):
    """What somebody asked for."""

    RUNNING = "running"
    STOPPED = "stopped"
    PAUSED = "paused"
    ABSENT = "absent"


class Phase(StrEnum):
    """What the agent last saw. `failed`: the last operation on the sliver broke; see its error."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    PAUSED = "paused"
    FAILED = "failed"


class Boot(StrEnum):
    """How a kvm sliver starts. `loader`: by the image's own boot loader, on whichever firmware it is made for."""

    LOADER = "loader"
    BIOS = "bios"
    UEFI = "uefi"
    DIRECT = "direct"  # the kernel and initrd that the import found in the image


class OperationState(StrEnum):
    """The life of an operation."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (OperationState.DONE, OperationState.FAILED)


class ImageState(StrEnum):
    """`uploaded`: the file is here, its base is not yet."""

    UPLOADED = "uploaded"
    READY = "ready"
    DELETING = "deleting"


class Role(StrEnum):
    """What a user is in a project. A PI answers for it: members, everybody's slices, requests within the ceiling."""

    PI = "pi"
    MEMBER = "member"


class Scope(StrEnum):
    """What a token may be used for."""

    READ = "read"
    WRITE = "write"


class RequestState(StrEnum):
    """The life of a request beyond the quota."""

    WAITING = "waiting"
    GRANTED = "granted"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sliver may use. `None` in an optional limit means: not limited by us.

    cpu is a quota in cores; cpu_shares the relative weight under contention (1024 = normal);
    memory_soft is the amount the kernel reclaims down to under pressure; io_weight 1..1000.
    disk is what the sliver may write, of its own; pids 0 means: none (a virtual machine has a kernel of its own).
    io_rate is bytes, io_ops operations a second, reads and writes together; net_in and net_out are bits per second
    towards the sliver and from it.
    """

    memory: int
    disk: int
    pids: int
    cpu: float
    cpu_shares: int = 1024
    memory_soft: int | None = None
    io_weight: int | None = None
    io_rate: int | None = None
    io_ops: int | None = None
    net_in: int | None = None
    net_out: int | None = None


@dataclass(frozen=True, slots=True)
class PortBlock:
    """A sliver's range of node ports; the lowest leads to 22, every other one to itself."""

    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """A request for a slice, complete and valid: made once at the edge."""

    name: str
    kind: Kind
    image: str
    count: int
    limits: Limits
    ports: int
    lease: timedelta
    ssh_keys: tuple[str, ...]
    node: str | None = None
    boot: Boot = Boot.LOADER
    user_data: str = ""
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True)
class BootFacts:
    """What the import found in an image to boot it with.

    bios: a boot sector with code; uefi: an EFI system partition. kernel, initrd: paths inside the image, "" if there
    is none; root: the kernel's arguments that say where the root file system is.
    """

    bios: bool = False
    uefi: bool = False
    kernel: str = ""
    initrd: str = ""
    root: str = ""

    def choose(self, wanted: Boot) -> Boot | None:
        """How an image boots if `wanted` is asked for; None if it cannot."""
        match wanted:
            case Boot.LOADER:
                return Boot.BIOS if self.bios else Boot.UEFI if self.uefi else Boot.DIRECT if self.kernel else None
            case Boot.BIOS:
                return wanted if self.bios else None
            case Boot.UEFI:
                return wanted if self.uefi else None
            case Boot.DIRECT:
                return wanted if self.kernel else None


NO_BOOT = BootFacts()


@dataclass(frozen=True, slots=True)
class SliverSnapshot:
    """A snapshot that a sliver shall have. made: the agent has made it, of `size` bytes beyond the image."""

    id: str
    made: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class Sliver:
    """One sliver as the database wants it: all that the agent needs to make it.

    id is `TAG-INDEX`; tag is the slice's own, unique for ever. serial is the row's number, never given twice.
    """

    id: str
    serial: int
    tag: str
    slice_name: str
    index: int
    kind: Kind
    desired: Desired
    image: str  # sha256
    arch: str  # x86_64, i686, aarch64
    address: str
    ports: PortBlock
    uid_first: int
    limits: Limits
    ssh_keys: tuple[str, ...]
    siblings: int = 1  # slivers in the slice
    host_key: str = ""  # the public half, one line, as known_hosts wants it
    generation: int = 0  # a restart asks for a domain of a newer generation
    image_format: str = "qcow2"  # as recorded at the import
    image_size: int = 0  # bytes that a guest would see of the image
    boot: Boot = Boot.BIOS
    boot_facts: BootFacts = NO_BOOT
    user_data: str = ""
    project: str = DEFAULT_PROJECT
    origin: str = ""  # what its root begins as: SLIVER/SNAPSHOT; "": the image
    inherited: int = 0  # of a clone: bytes it began with; they count against its disk limit
    epoch: int = 0  # how many roots it has had before the one it shall have
    snapshots: tuple[SliverSnapshot, ...] = ()

    @property
    def hostname(self) -> str:
        return f"{self.slice_name}-{self.index}"


@dataclass(frozen=True, slots=True)
class Image:
    """A VM disk image as imported; `virtual_size` is what a guest would see."""

    sha256: str
    name: str
    format: str  # qcow2 or raw, as recorded at import; never probed again
    virtual_size: int
    file_size: int
    arch: str
    os: str  # "" if no Linux was found in it: it makes no containers then
    state: ImageState
    created_at: datetime
    boot: BootFacts = NO_BOOT


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of an operation as people see it. sliver is "" for a step of the whole."""

    sliver: str
    name: str
    state: OperationState
    detail: str = ""
    percent: int | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """A user as of now. roles: by project."""

    admin: bool
    enabled: bool
    roles: dict[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Credential:
    """The token or session that something was asked for with."""

    user: str
    scope: Scope
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """The sliver that a console is of. name: as `exp/0`."""

    name: str
    slice: str
    project: str
    owner: str
    desired: str

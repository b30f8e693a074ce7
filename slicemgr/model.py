"""The vocabulary of the project as immutable values. No behaviour but derived values; input is validated elsewhere.

Sizes are bytes, times are timezone-aware UTC datetimes, CPU is in cores (0.5 = half a core).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
IDS_PER_SLIVER = 65536
DEFAULT_PROJECT = "default"  # for the slices of an admin without a project
SPARE = "spare"  # instead of the name of a slice, of slivers that belong to none yet


class SliverType(StrEnum):
    """The technology of a sliver."""

    LXC = "lxc"
    KVM = "kvm"


class Desired(StrEnum):
    """The requested state."""

    RUNNING = "running"
    STOPPED = "stopped"
    PAUSED = "paused"
    ABSENT = "absent"


class Phase(StrEnum):
    """The state that the agent last observed. `failed`: the last operation on the sliver failed; see its error."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    PAUSED = "paused"
    FAILED = "failed"


class Boot(StrEnum):
    """How a kvm sliver boots. `loader`: the image's own boot loader, with the firmware it was made for."""

    LOADER = "loader"
    BIOS = "bios"
    UEFI = "uefi"
    DIRECT = "direct"  # the kernel and initrd that the import found in the image


class Machine(StrEnum):
    """The hardware of a kvm sliver. `thin`: only what a kernel needs to run; no firmware, no screen."""

    STANDARD = "standard"
    THIN = "thin"


class Init(StrEnum):
    """The first process of an lxc sliver. `minimal`: that of slicemgr; `systemd`: that of the image."""

    MINIMAL = "minimal"
    SYSTEMD = "systemd"


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
    """`uploaded`: the file exists, its base does not yet. `missing`: its files were lost, import it again."""

    UPLOADED = "uploaded"
    READY = "ready"
    DELETING = "deleting"
    MISSING = "missing"


class NodeImageState(StrEnum):
    """What a node has of an image. `failed`: it could not be fetched, and is fetched again. `absent`: nothing."""

    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"
    ABSENT = "absent"


class NodeState(StrEnum):
    """The life of a node. `added`: its host has not joined. `joined`: its host has a certificate, but no agent reported
    yet. A node whose agent uses the database itself is `active` from the start."""

    ADDED = "added"
    JOINED = "joined"
    ACTIVE = "active"


class OnLoss(StrEnum):
    """What happens to the slivers of a slice on a node that is lost. `keep`: they remain there, and continue to run if
    the node does. `rebuild`: they are made again from the image on other nodes; their data is lost."""

    KEEP = "keep"
    REBUILD = "rebuild"


class Role(StrEnum):
    """The role of a user in a project. A PI manages members, all slices, and requests within the ceiling."""

    PI = "pi"
    MEMBER = "member"


class Scope(StrEnum):
    """What a token permits."""

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
    memory is the ceiling; of it memory_guarantee is always available to the sliver, and memory_weight (1..10000,
    100 = normal) is its share of what lies between. memory_max is the largest ceiling that a virtual machine can get
    while it runs; None: that with which it started. memory_soft (deprecated) is the amount the kernel reclaims down to
    under pressure; io_weight 1..1000.
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
    memory_guarantee: int = 0
    memory_weight: int = 100
    memory_max: int | None = None

    @property
    def live(self) -> tuple[float, ...]:
        """The values of LIVE_LIMITS."""
        return tuple(getattr(self, name) for name in LIVE_LIMITS)


LIVE_LIMITS = ("memory", "cpu", "cpu_shares", "pids")  # what the groups of a running container take over


@dataclass(frozen=True, slots=True)
class PortBlock:
    """A sliver's range of node ports; the lowest leads to port 22, every other one to the same number."""

    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Spread(StrEnum):
    """How the slivers of a slice are distributed: evenly over nodes or over sites, or on as few nodes as possible."""

    NODE = "node"
    SITE = "site"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class Where:
    """Where slivers may be placed. nodes: only on these; (): on any. site: only there; "": anywhere.

    apart: a slice of the project whose nodes are not used; "": none. each: the node of each sliver, by its index.
    """

    nodes: tuple[str, ...] = ()
    site: str = ""
    spread: Spread = Spread.NODE
    apart: str = ""
    each: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """A complete and valid request for a slice, created once by the service."""

    name: str
    type: SliverType
    image: str
    count: int
    limits: Limits
    ports: int
    lease: timedelta
    ssh_keys: tuple[str, ...]
    where: Where = Where()
    boot: Boot = Boot.LOADER
    machine: Machine = Machine.STANDARD
    init: Init = Init.MINIMAL
    user_data: str = ""
    project: str = DEFAULT_PROJECT
    on_loss: OnLoss = OnLoss.KEEP
    warm: bool = True  # whether it may take a spare


@dataclass(frozen=True, slots=True)
class BootFacts:
    """The facts that the import found for booting an image.

    bios: a boot sector with code; uefi: an EFI system partition. kernel, initrd: paths inside the image, "" if there is
    none; root: the kernel's arguments that name the root file system. mmio: the kernel itself finds devices that have
    no PCI bus. programs: of a thin kernel, those of kernel.toml whose options it has.
    """

    bios: bool = False
    uefi: bool = False
    kernel: str = ""
    initrd: str = ""
    root: str = ""
    mmio: bool = False
    programs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "programs", tuple(self.programs))  # JSON has a list

    def to_json(self) -> dict[str, Any]:
        """The facts for a row. Nodes of earlier versions, which know neither `mmio` nor `programs`, read those of an
        image without a thin kernel.
        """
        found = asdict(self) | {"programs": list(self.programs)}
        return {name: value for name, value in found.items() if name not in ("mmio", "programs") or value}

    def choose(self, wanted: Boot) -> Boot | None:
        """How an image boots if `wanted` is requested; None if that is impossible."""
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
    """A desired snapshot of a sliver. made: the agent has created it, with `size` bytes beyond the image."""

    id: str
    made: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class Sliver:
    """The desired state of one sliver: all facts that the agent needs to create it.

    id is `TAG-INDEX`; tag is unique for each slice for ever. serial is the row's number, never reused.
    """

    id: str
    serial: int
    tag: str
    slice_name: str
    index: int
    type: SliverType
    desired: Desired
    image: str  # sha256
    arch: str  # x86_64, i686, aarch64
    address: str
    ports: PortBlock
    uid_first: int
    limits: Limits
    ssh_keys: tuple[str, ...]
    siblings: int = 1  # slivers in the slice
    host_key: str = ""  # the public key, one line, in the format of known_hosts
    generation: int = 0  # a restart increments it
    image_format: str = "qcow2"  # as recorded at the import
    image_size: int = 0  # the disk size of the image in bytes
    boot: Boot = Boot.BIOS
    boot_facts: BootFacts = NO_BOOT
    machine: Machine = Machine.STANDARD
    init: Init = Init.MINIMAL
    user_data: str = ""
    project: str = DEFAULT_PROJECT
    origin: str = ""  # the origin of its root: SLIVER/SNAPSHOT; "": the image
    inherited: int = 0  # of a clone: bytes of its initial content; they count against its disk limit
    epoch: int = 0  # the number of roots before the desired one
    snapshots: tuple[SliverSnapshot, ...] = ()
    peers: tuple[tuple[int, str], ...] = ()  # index and address of each sliver of the slice, if it has several
    spare: bool = False  # whether it belongs to no slice yet

    @property
    def hostname(self) -> str:
        return SPARE if self.spare else self.hostname_of(self.index)  # no slice's sliver has the name of a spare

    def hostname_of(self, index: int) -> str:
        """The host name of a sliver of the slice."""
        return f"{self.slice_name}-{index}"


@dataclass(frozen=True, slots=True)
class BaseStream:
    """The file with the stream of an image's base. size: in bytes. version: of the extraction."""

    sha256: str
    size: int
    version: int


@dataclass(frozen=True, slots=True)
class Image:
    """An imported VM disk image; `virtual_size` is its disk size."""

    sha256: str
    name: str
    format: str  # qcow2 or raw, as recorded at import; never probed again
    virtual_size: int
    file_size: int
    arch: str
    os: str  # "" if the import found no Linux: it is then unusable for containers
    state: ImageState
    created_at: datetime
    boot: BootFacts = NO_BOOT
    systemd: bool | None = None  # None: not known
    base_size: int = 0  # bytes of its files in a pool
    stream: BaseStream | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of an operation for display. sliver is "" for a step of the whole operation."""

    sliver: str
    name: str
    state: OperationState
    detail: str = ""
    percent: int | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """The current state of a user. roles: by project."""

    admin: bool
    enabled: bool
    roles: dict[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Credential:
    """The token or session of a request."""

    user: str
    scope: Scope
    expires_at: datetime | None


class DialPurpose(StrEnum):
    """What a connection is for that a node opens to the service."""

    CONSOLE = "console"
    SCREEN = "screen"
    QUERY = "query"  # one question to the agent, which only reads


@dataclass(frozen=True, slots=True)
class Dial:
    """A node is to open a connection to the service. secret: names it, for one use. user, sliver: of a console."""

    secret: str
    purpose: DialPurpose
    user: str = ""
    sliver: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """The sliver of a console. name: as `exp/0`."""

    name: str
    slice: str
    project: str
    owner: str
    desired: str

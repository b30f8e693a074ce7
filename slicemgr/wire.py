"""The REST API's JSON as types, for the client and its users. Nothing is imported at run time.

Times are RFC 3339 text in UTC, sizes bytes, cpu cores, network rates bits per second; `None` means: unknown (yet) or
not limited.
"""

from __future__ import annotations

from typing import Literal, NotRequired, Required, TypedDict

State = Literal["queued", "running", "done", "failed"]


class Ssh(TypedDict):
    """The address of the sliver's sshd; `host_key` is the line for known_hosts, `fingerprint` its SHA256."""

    host: str
    port: int
    fingerprint: str | None
    host_key: NotRequired[str | None]


class Ports(TypedDict):
    first: int
    last: int


class Limits(TypedDict):
    cpu: float
    cpu_shares: int
    memory: int
    memory_guarantee: NotRequired[int]
    memory_weight: NotRequired[int]
    memory_max: NotRequired[int | None]
    memory_soft: int | None
    disk: int
    pids: int | None
    io_weight: int | None
    io_rate: int | None
    io_ops: int | None
    net_in: int | None
    net_out: int | None


class Usage(TypedDict):
    """The latest sample of a sliver, in bytes. memory: deprecated, the same as working."""

    memory: int | None
    working: NotRequired[int | None]
    charged: NotRequired[int | None]
    disk: int | None
    guest_memory: int | None
    at: NotRequired[str | None]


class Sliver(TypedDict):
    index: int
    id: str
    node: str
    state: str
    unknown_since: NotRequired[str | None]
    address: str
    ssh: Ssh
    ports: Ports
    limits: Limits
    usage: Usage
    acceleration: str | None
    booted: str | None
    keys_missing: NotRequired[str | None]
    oom_kills: NotRequired[int]
    oom_at: NotRequired[str | None]
    error: str | None


class Slice(TypedDict):
    name: str
    type: str
    project: str
    owner: str
    state: str
    created_at: str
    expires_at: str | None
    lease_ended_at: str | None
    notice: NotRequired[str | None]
    image: str
    image_sha256: str
    boot: str | None
    machine: NotRequired[str | None]
    init: NotRequired[str | None]
    on_loss: NotRequired[str]
    warm: NotRequired[bool]
    snapshots: NotRequired[int]
    slivers: list[Sliver]


class PlannedSlice(Slice):
    """The slice that a dry run describes."""

    elsewhere: NotRequired[list[Elsewhere]]  # not sent by earlier versions


class Renewed(Slice):
    """trimmed: the reason if the end is not the requested one."""

    trimmed: NotRequired[str | None]


class LeaseRules(TypedDict):
    """Seconds. own: the settings that the project overrides; window 0: renewal at any time."""

    project: str
    default: int
    longest: int
    grace: int
    window: int
    reminders: list[int]
    exempt: bool
    own: list[str]


class Clock(TypedDict):
    """held: the number of slices whose lease has ended by the doubted clock alone."""

    says: str
    leases_go_by: str
    doubt: str | None
    held: int


class SliceRequest(TypedDict, total=False):
    """A request for a slice; sizes are bytes or text like `512M`, rates bits per second or text like `100Mbit`.

    An omitted field uses the node's default.
    """

    name: str
    project: str
    reason: str
    type: str
    image: str
    count: int
    cpu: float
    cpu_shares: int
    memory: int | str
    memory_guarantee: int | str
    memory_weight: int
    memory_max: int | str
    memory_soft: int | str
    disk: int | str
    pids: int
    io_weight: int
    io_rate: int | str
    io_ops: int
    boot: str
    machine: str
    init: str
    on_loss: str
    user_data: str
    net_in: int | str
    net_out: int | str
    ports: int
    lease: str
    ssh_keys: list[str]
    node: str
    site: str
    spread: str
    apart: str
    warm: bool
    dry_run: bool


class Elsewhere(TypedDict):
    """Why a node is not used."""

    node: str
    reason: str


class Step(TypedDict):
    sliver: str
    name: str
    state: State
    detail: str
    percent: int | None
    began: NotRequired[float]  # seconds after the operation was created
    seconds: NotRequired[float | None]  # duration; None while it runs


class OperationProgress(TypedDict):
    done: int
    total: int


class Check(TypedDict):
    name: str
    ok: bool | None
    detail: str
    remedy: str


class GcItem(TypedDict):
    what: str
    name: str
    detail: str
    removed: bool


class Baseline(TypedDict):
    """Seconds for each raw sliver, and for all: until started, until the SSH banner, until deleted.

    spoke: until the first byte on a virtual machine's console; empty for containers.
    """

    started: list[float]
    spoke: list[float]
    answered: list[float]
    create: float
    delete: float


class BaselineRequest(TypedDict, total=False):
    """image: sha256; boot: of virtual machines."""

    type: str
    image: Required[str]
    boot: str
    memory: int | str
    count: int
    parallel: int


class AuditRow(TypedDict):
    """verdict: `pass`, `fail`, or `not applicable`: then `seen` gives the reason."""

    row: str
    kind: str
    expected: str
    seen: str
    verdict: str


class Audit(TypedDict):
    """failed: how many rows fail."""

    node: str
    began_at: str
    ended_at: str
    user: str
    version: str
    failed: int
    rows: list[AuditRow]


class Result(TypedDict, total=False):
    baseline: Baseline
    checks: list[Check]
    items: list[GcItem]
    measured: dict[str, float | str]
    tables: dict[str, object]


class OperationPart(TypedDict):
    """What one node does for an operation."""

    node: str
    state: State
    started_at: str | None
    finished_at: str | None
    error: str | None
    hint: str | None
    silent_since: NotRequired[str | None]
    progress: OperationProgress
    result: Result | None


class Operation(TypedDict):
    id: int | str
    kind: str
    state: State
    slice: str | None
    project: NotRequired[str | None]
    image: str | None
    user: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    error: str | None
    hint: str | None
    version: int
    progress: OperationProgress
    parts: NotRequired[list[OperationPart]]  # not sent by earlier versions
    steps: list[Step]
    result: Result | None


class Image(TypedDict):
    name: str
    sha256: str
    format: str
    virtual_size: int
    file_size: int
    arch: str
    os: str
    boot: dict[str, object]
    systemd: NotRequired[bool | None]
    kernel_config: NotRequired[int]  # bytes of the configuration of its kernel; 0: none is known
    state: str
    created_at: str
    used_by: int
    project: NotRequired[str | None]


class ImageOnNode(TypedDict):
    """state: fetching, ready or failed. error: of a failed attempt. base_size: bytes in the pool of the node.

    disk, base: fetching or ready, of the disk image and of the base; "": the node does not have it.
    """

    node: str
    site: str
    state: str
    error: str
    base_size: int
    disk: NotRequired[str]
    base: NotRequired[str]
    updated_at: str


class Node(TypedDict):
    """state: added, joined or active. drained: whether it gets no new slivers. agent_seen_at: None: never.

    liveness: alive, silent or lost. silent_since: the last report of a silent or lost node.
    resync_at: since when the node is to get all its rows again; None: it has them.
    """

    name: str
    address: str
    site: NotRequired[str]
    state: NotRequired[str]
    drained: NotRequired[bool]
    liveness: NotRequired[str]
    silent_since: NotRequired[str | None]
    version: NotRequired[str | None]
    beat_at: NotRequired[str | None]
    resync_at: NotRequired[str | None]
    agent_seen_at: str | None
    facts: dict[str, object]
    capacity: dict[str, int]
    used: dict[str, int]


class LeftSlice(TypedDict):
    project: str
    slice: str
    reason: str


class Evacuation(TypedDict):
    """operations: one for each slice that is made again. left: slices whose slivers remain on the lost node."""

    operations: list[Operation]
    left: list[LeftSlice]


class AddedNode(TypedDict):
    """command: for the host of the node; it contains a secret."""

    node: Node
    command: str
    expires_at: str


class Event(TypedDict):
    id: int
    at: str
    user: str
    action: str
    slice: str | None
    detail: str
    project: NotRequired[str | None]
    address: NotRequired[str | None]


class User(TypedDict):
    """projects: role by project; None if you may not see it."""

    name: str
    full_name: str | None
    email: str | None
    admin: bool | None
    enabled: bool | None
    created_at: str | None
    projects: dict[str, str]
    default_project: NotRequired[str | None]
    origin: str | None
    openid: str | None
    has_password: bool | None
    invited_until: str | None


class Me(User):
    scope: str


class Invitation(TypedDict):
    token: str
    link: str
    expires_at: str


class Invited(TypedDict):
    user: User
    invitation: Invitation


class Amounts(TypedDict):
    slices: int
    slivers: int
    vcpus: float
    memory: int
    memory_guarantee: NotRequired[int]
    disk: int
    ports: int


class Quota(TypedDict):
    """None: not limited; lease in seconds."""

    slices: int | None
    slivers: int | None
    vcpus: float | None
    memory: int | None
    memory_guarantee: NotRequired[int | None]
    disk: int | None
    ports: int | None
    lease: int | None


class Member(TypedDict):
    user: str
    full_name: str | None
    role: str
    enabled: bool | None


class ProjectInvitation(TypedDict):
    """invitee: the given user name or mail address, whether the account exists or not."""

    id: str
    project: str
    invitee: str
    role: str
    invited_by: str
    created_at: str
    expires_at: str


class Project(TypedDict):
    """invitations: None if you may not see them."""

    name: str
    description: str | None
    created_at: str
    role: str | None
    used: Amounts
    quota: Quota
    ceiling: Quota
    members: list[Member]
    invitations: NotRequired[list[ProjectInvitation] | None]


class Key(TypedDict):
    id: str
    user: str
    type: str
    fingerprint: str
    comment: str | None
    key: str
    created_at: str
    running_slices: NotRequired[int]


class Token(TypedDict):
    id: str
    user: str
    label: str
    scope: str
    created_at: str
    expires_at: str | None
    used_at: str | None
    used_from: str | None
    current: bool


class NewToken(Token):
    token: str


class Session(TypedDict):
    id: str
    user: str
    created_at: str
    expires_at: str
    used_at: str
    address: str | None
    agent: str | None
    current: bool


class Request(TypedDict):
    """A slice, or a larger disk limit, requested beyond the quota: waiting, granted, declined or withdrawn.

    action: `create` or `resize`. granted: the values that replaced those of the request, None if there are none.
    unread: its user has not opened the page of the request since the decision.
    """

    id: str
    state: str
    project: str
    user: str
    name: str
    reason: str
    exceeds: str | None
    wanted: dict[str, object]
    created_at: str
    decided_at: str | None
    decided_by: str | None
    answer: str | None
    operation: str | None
    granted: NotRequired[dict[str, object] | None]
    unread: NotRequired[bool]
    action: NotRequired[str]


class Console(TypedDict):
    """The token for a sliver's console: a WebSocket at `path`."""

    token: str
    path: str


class SliverSnapshot(TypedDict):
    index: int
    made_at: str | None
    size: int | None
    detail: str | None


class Snapshot(TypedDict):
    """Of a whole slice; size: bytes beyond the image. state: making or ready."""

    name: str
    slice: str
    project: str
    state: str
    user: str
    created_at: str
    made_at: str | None
    size: int | None
    slivers: list[SliverSnapshot]


class Created(TypedDict):
    """The response to a SliceRequest: `plan` alone for a dry run, `request` alone beyond the quota."""

    request: NotRequired[Request]
    operation: NotRequired[Operation]
    slice: NotRequired[Slice]
    plan: NotRequired[PlannedSlice]


class Imported(TypedDict):
    """`operation` is absent if the image was known already."""

    image: Image
    operation: NotRequired[Operation]


class ReportFile(TypedDict):
    name: str
    size: int
    type: str


class Experiment(TypedDict):
    """A published report. public False: hidden from all but admins."""

    id: str
    name: str
    kind: str
    node: str | None
    summary: str
    note: str | None
    public: bool
    started_at: str | None
    published_at: str
    published_by: str
    size: int
    sha256: str
    files: list[ReportFile]

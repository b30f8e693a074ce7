"""The API's shapes for its OpenAPI description. service.slices.specs validates input and names wrong fields."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

_SIZE = {"description": "bytes, or text such as 512M", "oneOf": [{"type": "integer"}, {"type": "string"}]}
_RATE = {
    "description": "bits per second, or text such as 100Mbit",
    "oneOf": [{"type": "integer", "minimum": 64000, "maximum": 100_000_000_000}, {"type": "string"}],
}

_MEMORY: dict[str, object] = {
    "memory_guarantee": {
        **_SIZE,
        "description": "part of `memory` that the node reserves for each sliver",
    },
    "memory_weight": {
        "type": "integer",
        "minimum": 1,
        "maximum": 10000,
        "description": "share of the memory between guarantee and limit, 100 unless given",
    },
}
SLICE_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "name": {
            "type": "string",
            "maxLength": 40,
            "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
            "description": "default: a generated name",
        },
        "project": {"type": "string", "description": "required for members of several projects"},
        "type": {"type": "string", "enum": ["lxc", "kvm"]},
        "image": {
            "type": "string",
            "description": "name or sha256; default: `limits.image` of the settings, otherwise the only ready image",
        },
        "count": {"type": "integer", "minimum": 1, "default": 1},
        "cpu": {"type": "number", "description": "cores"},
        "cpu_shares": {"type": "integer", "minimum": 2, "maximum": 262144},
        "memory": _SIZE,
        **_MEMORY,
        "memory_max": {
            **_SIZE,
            "description": "up to how much `resize` can raise `memory` while the slivers run; kvm only; default: what "
            "they started with",
        },
        "memory_soft": {**_SIZE, "deprecated": True},
        "disk": _SIZE,
        "pids": {"type": "integer", "minimum": 8},
        "io_weight": {"type": "integer", "minimum": 1, "maximum": 1000},
        "io_rate": {**_SIZE, "description": "bytes per second, or text such as 20M; kvm only"},
        "io_ops": {"type": "integer", "minimum": 10, "description": "block operations per second; kvm only"},
        "boot": {"type": "string", "enum": ["loader", "bios", "uefi", "direct"], "description": "kvm only"},
        "machine": {"type": "string", "enum": ["standard", "thin"], "default": "standard", "description": "kvm only"},
        "init": {"type": "string", "enum": ["minimal", "systemd"], "default": "minimal", "description": "lxc only"},
        "user_data": {"type": "string", "maxLength": 65536, "description": "a cloud-config or a script"},
        "net_in": _RATE,
        "net_out": _RATE,
        "ports": {"type": "integer", "minimum": 1},
        "lease": {"type": "string", "example": "7d"},
        "ssh_keys": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "optional if your account has SSH keys",
        },
        "node": {"type": "string", "description": "names of nodes, separated by commas; default: any"},
        "site": {"type": "string", "description": "only nodes at this site"},
        "spread": {
            "type": "string",
            "enum": ["node", "site", "pack"],
            "default": "node",
            "description": "evenly over nodes or over sites, or on as few nodes as possible",
        },
        "apart": {"type": "string", "description": "a slice of the project, whose nodes are not used"},
        "on_loss": {
            "type": "string",
            "enum": ["keep", "rebuild"],
            "default": "keep",
            "description": "what happens to its slivers on a node that has not reported for 5 minutes: they remain, or "
            "are made again from the image on other nodes, without their data",
        },
        "warm": {
            "type": "boolean",
            "default": True,
            "description": "whether it may take a sliver that the node keeps ready, if one fits",
        },
        "dry_run": {"type": "boolean", "default": False},
        "reason": {
            "type": "string",
            "maxLength": 2000,
            "description": "reason to exceed the quota; creates a request for a PI or an admin",
        },
    },
}
RESIZE_REQUEST: dict[str, object] = {
    "type": "object",
    "properties": {
        "disk": {"type": "string", "example": "8G"},
        "memory": _SIZE,
        **_MEMORY,
        "reason": {"type": "string", "maxLength": 2000, "description": "reason to exceed the quota"},
    },
}
BASELINE_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["image"],
    "properties": {
        "type": {"type": "string", "enum": ["lxc", "kvm"]},
        "boot": {"type": "string", "enum": ["loader", "bios", "uefi", "direct"]},
        "image": {"type": "string", "description": "sha256"},
        "memory": _SIZE,
        "count": {"type": "integer", "minimum": 1},
        "parallel": {"type": "integer", "minimum": 1, "maximum": 64},
    },
}


def body(schema: dict[str, object]) -> dict[str, object]:
    """A JSON request body for `Blueprint.doc`."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}


class Problem(Schema):
    """An error, after RFC 9457. errors: one for each wrong field."""

    type = fields.String()
    title = fields.String()
    status = fields.Integer()
    code = fields.String()
    detail = fields.String()
    hint = fields.String()
    field = fields.String()
    errors = fields.List(fields.Dict())


class Ssh(Schema):
    host = fields.String()
    port = fields.Integer()
    fingerprint = fields.String(allow_none=True)
    host_key = fields.String(allow_none=True)


class Ports(Schema):
    first = fields.Integer()
    last = fields.Integer()


class Limits(Schema):
    cpu = fields.Float(metadata={"description": "cores"})
    cpu_shares = fields.Integer()
    memory = fields.Integer(metadata={"description": "bytes"})
    memory_guarantee = fields.Integer(
        metadata={"description": "bytes of `memory` that the node reserves for the sliver"}
    )
    memory_weight = fields.Integer(metadata={"description": "share of the memory between guarantee and limit"})
    memory_max = fields.Integer(
        allow_none=True, metadata={"description": "up to how much bytes `memory` can be raised while the sliver runs"}
    )
    memory_soft = fields.Integer(allow_none=True)
    disk = fields.Integer(metadata={"description": "bytes"})
    pids = fields.Integer(allow_none=True)
    io_weight = fields.Integer(allow_none=True)
    io_rate = fields.Integer(allow_none=True, metadata={"description": "bytes per second"})
    io_ops = fields.Integer(allow_none=True, metadata={"description": "operations per second"})
    net_in = fields.Integer(allow_none=True, metadata={"description": "ingress rate, bits per second"})
    net_out = fields.Integer(allow_none=True, metadata={"description": "egress rate, bits per second"})


class Usage(Schema):
    """The latest sample."""

    memory = fields.Integer(
        allow_none=True, metadata={"description": "the former name of `working`", "deprecated": True}
    )
    working = fields.Integer(
        allow_none=True,
        metadata={"description": "bytes of the working set: `charged` without page cache that was not used lately"},
    )
    charged = fields.Integer(
        allow_none=True, metadata={"description": "all bytes of memory that its group is charged with"}
    )
    disk = fields.Integer(
        allow_none=True, metadata={"description": "bytes that count against its limit, without the base"}
    )
    guest_memory = fields.Integer(allow_none=True, metadata={"description": "bytes used, as reported by a kvm guest"})
    at = fields.String(allow_none=True, metadata={"description": "when that was sampled; null: not yet"})


class Sliver(Schema):
    index = fields.Integer()
    id = fields.String()
    node = fields.String()
    state = fields.String()
    unknown_since = fields.String(
        allow_none=True, metadata={"description": "the last report of its node, if the state is unknown"}
    )
    address = fields.String()
    ssh = fields.Nested(Ssh)
    ports = fields.Nested(Ports)
    limits = fields.Nested(Limits)
    usage = fields.Nested(Usage)
    acceleration = fields.String(allow_none=True, metadata={"description": "acceleration of a kvm sliver"})
    booted = fields.String(allow_none=True, metadata={"description": "whether the start of a kvm sliver has ended"})
    keys_missing = fields.String(
        allow_none=True, metadata={"description": "why the newest SSH keys are not installed yet"}
    )
    oom_kills = fields.Integer(
        metadata={"description": "processes that the kernel killed at the memory limit since the sliver was created"}
    )
    oom_at = fields.String(allow_none=True, metadata={"description": "when that was last sampled; null: never"})
    error = fields.String(allow_none=True)


class Slice(Schema):
    name = fields.String()
    type = fields.String()
    project = fields.String()
    owner = fields.String()
    state = fields.String()
    created_at = fields.String()
    expires_at = fields.String(
        allow_none=True, metadata={"description": "null: the leases of its project do not expire"}
    )
    lease_ended_at = fields.String(allow_none=True)
    notice = fields.String(
        allow_none=True, metadata={"description": "notice about its lease, such as its end or the reason of a stop"}
    )
    image = fields.String()
    image_sha256 = fields.String()
    boot = fields.String(allow_none=True, metadata={"description": "how a kvm slice boots: bios, uefi or direct"})
    machine = fields.String(allow_none=True, metadata={"description": "hardware of kvm slivers: standard or thin"})
    init = fields.String(allow_none=True, metadata={"description": "the init of lxc slivers: minimal or systemd"})
    on_loss = fields.String(metadata={"description": "what happens to slivers on a lost node: keep or rebuild"})
    warm = fields.Boolean(metadata={"description": "whether its sliver was kept ready, and was not made for it"})
    snapshots = fields.Integer(metadata={"description": "number of snapshots; deleted with the slice"})
    slivers = fields.List(fields.Nested(Sliver))


class PlannedSliver(Sliver):
    id = fields.String(allow_none=True)


class Elsewhere(Schema):
    node = fields.String()
    reason = fields.String()


class Plan(Slice):
    """The slice that a dry run describes."""

    created_at = fields.String(allow_none=True)
    slivers = fields.List(fields.Nested(PlannedSliver))
    elsewhere = fields.List(fields.Nested(Elsewhere), metadata={"description": "why other nodes are not used"})


class Step(Schema):
    sliver = fields.String(metadata={"description": "sliver id, empty for a step of the whole"})
    name = fields.String()
    state = fields.String()
    detail = fields.String()
    percent = fields.Integer(allow_none=True)
    began = fields.Float(
        metadata={"description": "seconds after the request of the operation, by the clock of the node"}
    )
    seconds = fields.Float(allow_none=True, metadata={"description": "duration in seconds, null while it runs"})


class OperationPart(Schema):
    """What one node does for an operation."""

    node = fields.String()
    state = fields.String(metadata={"description": "queued, running, done or failed"})
    started_at = fields.String(allow_none=True)
    finished_at = fields.String(allow_none=True)
    error = fields.String(allow_none=True)
    hint = fields.String(allow_none=True)
    silent_since = fields.String(
        allow_none=True,
        metadata={"description": "the last report of a silent or lost node, for which the part waits"},
    )
    progress = fields.Dict(metadata={"description": "number of its slivers: done and total"})
    result = fields.Dict(allow_none=True)


class Operation(Schema):
    """It ends with the last of its parts, and fails if one of them does."""

    id = fields.String()
    kind = fields.String()
    state = fields.String(metadata={"description": "queued, running, done or failed"})
    slice = fields.String(allow_none=True)
    project = fields.String(allow_none=True)
    image = fields.String(allow_none=True)
    user = fields.String()
    created_at = fields.String()
    started_at = fields.String(allow_none=True)
    finished_at = fields.String(allow_none=True)
    error = fields.String(allow_none=True)
    hint = fields.String(allow_none=True)
    version = fields.Integer()
    progress = fields.Dict()
    parts = fields.List(fields.Nested(OperationPart), metadata={"description": "one for each node"})
    steps = fields.List(fields.Nested(Step))
    result = fields.Dict(
        allow_none=True, metadata={"description": "null if there are several parts, which have results of their own"}
    )


class Image(Schema):
    name = fields.String()
    sha256 = fields.String()
    format = fields.String()
    virtual_size = fields.Integer()
    file_size = fields.Integer()
    arch = fields.String()
    os = fields.String()
    boot = fields.Dict(
        metadata={"description": "boot methods and boot data: bios, uefi, kernel, initrd, root, mmio, programs"}
    )
    systemd = fields.Boolean(
        allow_none=True, metadata={"description": "whether lxc slivers can use its systemd as init; null: not known"}
    )
    kernel_config = fields.Integer(metadata={"description": "bytes of its kernel's configuration; 0: none is known"})
    state = fields.String()
    created_at = fields.String()
    used_by = fields.Integer()
    project = fields.String(allow_none=True, metadata={"description": "null: available to all projects"})


KERNEL_CONFIG: dict[str, Any] = {
    "200": {
        "description": "printable ASCII",
        "content": {"text/plain": {"schema": {"type": "string"}, "example": "CONFIG_64BIT=y\nCONFIG_X86_64=y\n"}},
    }
}


class Node(Schema):
    name = fields.String()
    address = fields.String()
    site = fields.String(metadata={"description": "empty: not given"})
    state = fields.String(metadata={"description": "added, joined or active"})
    drained = fields.Boolean(metadata={"description": "whether it gets no new slivers"})
    liveness = fields.String(
        metadata={"description": "alive, silent (no report for 30 seconds) or lost (no report for 5 minutes)"}
    )
    silent_since = fields.String(allow_none=True, metadata={"description": "the last report of a silent or lost node"})
    version = fields.String(allow_none=True, metadata={"description": "of a node that reports to the hub"})
    beat_at = fields.String(allow_none=True, metadata={"description": "when the hub stored its last report"})
    resync_at = fields.String(
        allow_none=True, metadata={"description": "since when it is to get all its rows again; null: it has them"}
    )
    agent_seen_at = fields.String(allow_none=True)
    facts = fields.Dict()
    capacity = fields.Dict()
    used = fields.Dict()


class Event(Schema):
    id = fields.Integer()
    at = fields.String()
    user = fields.String()
    action = fields.String()
    slice = fields.String(allow_none=True)
    project = fields.String(allow_none=True)
    detail = fields.String()
    address = fields.String(allow_none=True, metadata={"description": "address of the client"})


class Request(Schema):
    """A slice, or a larger disk limit of one, requested beyond the quota. `wanted`: the requested values."""

    id = fields.String()
    action = fields.String(metadata={"description": "create or resize"})
    state = fields.String(metadata={"description": "waiting, granted, declined or withdrawn"})
    project = fields.String()
    user = fields.String()
    name = fields.String(metadata={"description": "of the slice"})
    reason = fields.String()
    exceeds = fields.String(allow_none=True)
    wanted = fields.Dict()
    created_at = fields.String()
    decided_at = fields.String(allow_none=True)
    decided_by = fields.String(allow_none=True)
    answer = fields.String(allow_none=True, metadata={"description": "reason of the decision"})
    operation = fields.String(allow_none=True)
    granted = fields.Dict(
        allow_none=True, metadata={"description": "values that replaced those of the request; null: none"}
    )
    unread = fields.Boolean(
        metadata={"description": "whether its user has yet to open its page since the decision of another user"}
    )


class Listed(Schema):
    """One page of a list."""

    next = fields.String(metadata={"description": "`cursor` of the next page; omitted on the last page"})


class Slices(Listed):
    slices = fields.List(fields.Nested(Slice))


class Images(Listed):
    images = fields.List(fields.Nested(Image))


class Nodes(Listed):
    nodes = fields.List(fields.Nested(Node))


class Operations(Listed):
    operations = fields.List(fields.Nested(Operation))


class Events(Listed):
    events = fields.List(fields.Nested(Event))


class Health(Schema):
    status = fields.String()


CONSOLE_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sliver": {"type": "integer", "default": 0},
        "screen": {"type": "boolean", "default": False, "description": "of a virtual machine, as RFB (VNC)"},
    },
}


class Console(Schema):
    token = fields.String(metadata={"description": "opens one console or screen once, within 30 seconds"})
    path = fields.String(metadata={"description": "where to send the token, as a WebSocket subprotocol"})


class Asked(Schema):
    """The operation that was queued, and what it is about; or the request that waits."""

    request = fields.Nested(Request)
    operation = fields.Nested(Operation)
    slice = fields.Nested(Slice)
    image = fields.Nested(Image)
    plan = fields.Nested(Plan)

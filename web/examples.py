"""Examples of the API's shapes, field by field; `slicemgr.web.openapi` adds them to every request and response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U"
_SHA = "4f1d6c0b9a7e5d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0f9e8d7c6b5a"
_NOW, _LATER = "2026-01-31T12:00:00Z", "2026-02-07T12:00:00Z"
_REQUEST = "-----BEGIN CERTIFICATE REQUEST-----\nMIH...\n-----END CERTIFICATE REQUEST-----\n"
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB...\n-----END CERTIFICATE-----\n"
_MIB, _GIB = 1 << 20, 1 << 30

# By `Shape.field`, else by field.
FIELDS: dict[str, Any] = {
    "Accepted.user": "alice",
    "Amounts.disk": 8 * _GIB,
    "Amounts.memory": 512 * _MIB,
    "Amounts.memory_guarantee": 128 * _MIB,
    "Amounts.ports": 40,
    "Amounts.vcpus": 2.0,
    "Console.path": "/api/v1/console",
    "Event.action": "create",
    "Event.detail": "2 × lxc of debian-12",
    "Event.id": 4711,
    "Image.systemd": True,
    "Image.kernel_config": 56648,
    "ImageOnNode.error": "",
    "ImageOnNode.state": "ready",
    "Image.boot": {"bios": True, "uefi": True, "kernel": "/boot/vmlinuz", "initrd": "/boot/initrd.img", "root": ""},
    "Image.format": "qcow2",
    "Image.name": "debian-12",
    "Image.project": None,
    "Image.state": "ready",
    "Key.id": "9f86d081884c7d65",
    "Key.type": "ssh-ed25519",
    "Limits.cpu": 1.0,
    "Node.name": "node1",
    "Node.state": "active",
    "Node.version": None,
    "beat_at": None,
    "resync_at": None,
    "Operation.image": None,
    "Operation.kind": "create",
    "Operation.progress": {"done": 0, "total": 2},
    "Operation.parts": [
        {
            "node": "node1",
            "state": "queued",
            "started_at": None,
            "finished_at": None,
            "error": None,
            "hint": None,
            "silent_since": None,
            "progress": {"done": 0, "total": 2},
            "result": None,
        }
    ],
    "Operation.state": "queued",
    "Operation.steps": [],
    "OperationPart.progress": {"done": 0, "total": 2},
    "OperationPart.result": None,
    "OperationPart.state": "queued",
    "Problem.field": "memory",
    "Project.description": "Congestion control over satellites",
    "Project.name": "lab",
    "Quota.lease": 2592000,
    "Request.action": "create",
    "Request.name": "large",
    "Request.operation": None,
    "Request.state": "waiting",
    "Request.wanted": {"name": "large", "type": "lxc", "image": "debian-12", "count": 40},
    "Sliver.id": "k3x9q2ma-0",
    "Step.name": "root",
    "Step.state": "done",
    "Token.id": "1c2d3e4f5a6b7c8d",
    "User.name": "alice",
    "acceleration": None,
    "address": "192.0.2.7",
    "admin": False,
    "agent": "Firefox",
    "agent_seen_at": _NOW,
    "answer": None,
    "arch": "x86_64",
    "at": _NOW,
    "began": 0.021,
    "boot": None,
    "booted": None,
    "capacity": {"memory": 24 * _GIB, "disk": 200 * _GIB, "cpus": 8, "ports": 22768},
    "broker": "testbed.example:5671",
    "certificate": _CERTIFICATE,
    "changes": {"count": 20},
    "command": "slicemgr join https://testbed.example SECRET#4f1d6c0b",
    "comment": "alice@laptop",
    "cpu_shares": 1024,
    "created_at": _NOW,
    "current": False,
    "decided_at": None,
    "decided_by": None,
    "declined": "7d865e959b246691",
    "default_project": "lab",
    "deleted": "exp",
    "detail": "",
    "disk": 4 * _GIB,
    "email": "alice@example.org",
    "drained": False,
    "enabled": True,
    "error": None,
    "exceeds": "slivers: 42 of 50 are used, 40 more are too many",
    "expires": "30d",
    "expires_at": _LATER,
    "facts": {"cpus": 8, "kernel": "6.12.0"},
    "file_size": 400 * _MIB,
    "fingerprint": "SHA256:rQ5yDkGSjX1B0cVhmTjMqPSa6yU1mZ7cJfxQq3yNcWk",
    "finished_at": None,
    "first": 10000,
    "full_name": "Alice Example",
    "guest_memory": None,
    "hint": None,
    "host": "192.0.2.1",
    "host_key": _KEY,
    "id": "7d865e959b246691",
    "identity": "node-k3x9q2mab7cdefgh",
    "image": "debian-12",
    "image_sha256": _SHA,
    "index": 0,
    "init": "minimal",
    "invited_by": "alice",
    "invited_until": None,
    "invitee": "bob",
    "io_ops": None,
    "io_rate": None,
    "io_weight": None,
    "key": _KEY,
    "kind": "create",
    "label": "notebook",
    "last": 10019,
    "lease": "7d",
    "lease_ended_at": None,
    "link": "https://testbed.example/invitation/SECRET",
    "liveness": "alive",
    "memory": 512 * _MIB,
    "memory_guarantee": 128 * _MIB,
    "memory_max": None,
    "memory_soft": None,
    "memory_weight": 100,
    "name": "exp",
    "net_in": None,
    "net_out": None,
    "new": "a long new password",
    "next": "eyJuZXh0IjoxfQ",
    "node": "node1",
    "old": "the old long password",
    "os": "Debian 12",
    "openid": None,
    "on_loss": "keep",
    "origin": "local",
    "owner": "alice",
    "password": "a long password",
    "percent": None,
    "pi": "alice",
    "pids": 512,
    "port": 10000,
    "project": "lab",
    "projects": {"lab": "pi"},
    "removed": "node7",
    "reason": "forty senders for one bottleneck",
    "result": None,
    "role": "member",
    "scope": "write",
    "sha256": _SHA,
    "silent_since": None,
    "site": "tuebingen",
    "slice": "exp",
    "sliver": "k3x9q2ma-0",
    "slivers": 2,
    "started_at": None,
    "state": "running",
    "status": 422,
    "token": "u3Yw0m6zZrXk9t4hQbC2nV7sLpE1aJdG8fKxT5oHyWc",
    "type": "lxc",
    "unknown_since": None,
    "used": {
        "slivers": 2,
        "memory_limits": _GIB,
        "memory_guarantees": 256 * _MIB,
        "disk_limits": 8 * _GIB,
        "ports": 40,
        "addresses": 2,
        "spares": 1,
    },
    "used_at": _NOW,
    "used_by": 1,
    "used_from": "192.0.2.7",
    "user": "alice",
    "vcpus": 50.0,
    "version": 1,
    "virtual_size": 2 * _GIB,
    "warm": False,
}

# Complete request bodies, by operationId.
BODIES: dict[str, Any] = {
    "create_slice": {
        "name": "exp",
        "type": "lxc",
        "image": "debian-12",
        "count": 2,
        "memory": "512M",
        "lease": "7d",
        "ssh_keys": [_KEY],
    },
    "ask_for_console": {"sliver": 0},
    "resize_slice": {"disk": "8G"},
    "measure_baseline": {"type": "lxc", "image": _SHA, "memory": "256M", "count": 4, "parallel": 2},
    "measure_io": {"root": "overlay", "image": _SHA, "what": "sqlite", "size": 2_600_000, "seed": 1},
    "measure_sysbench": {"test": "fileio", "seconds": 10, "size": _GIB, "seed": 1},
    "measure_memory": {"bytes": _GIB, "before": 10, "hold": 30, "after": 10, "controller": "on"},
    "create_project": {"name": "lab", "pi": "alice", "quota": {"slices": 10, "memory": "64G"}},
    "change_project": {"quota": {"slices": 20, "lease": "30d"}, "ceiling": {"memory": None}},
    "invite_user": {"name": "alice", "email": "alice@example.org"},
    "change_user": {"full_name": "Alice Example"},
    "join_testbed": {"token": "SECRET", "request": _REQUEST},
    "renew_certificate": {"identity": "node-0123456789abcdef", "request": _REQUEST},
    "accept_invitation": {"token": "SECRET", "password": "a long password"},
}

# The alternatives that an example response shows, by operationId.
ANSWERS: dict[str, tuple[str, ...]] = {"import_image": ("operation", "image")}
ASKED = ("operation", "slice")


def of(schema: Mapping[str, Any], shapes: Mapping[str, Any], shape: str = "", field: str = "") -> Any:
    """An example of `schema`, which is the field `field` of `shape`. shapes: the components of the description."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return of(shapes[name], shapes, name)
    if "allOf" in schema:
        return of(schema["allOf"][0], shapes, shape, field)
    if "properties" in schema:
        names = schema["properties"] if shape != "Asked" else ASKED
        return {name: of(schema["properties"][name], shapes, shape, name) for name in names}
    if schema.get("type") == "array" and f"{shape}.{field}" not in FIELDS:
        return [of(schema["items"], shapes, shape)]
    return _value(schema, shape, field)


def _value(schema: Mapping[str, Any], shape: str, field: str) -> Any:
    if "example" in schema:
        return schema["example"]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in (f"{shape}.{field}", field):
        if name in FIELDS and _fits(FIELDS[name], schema):
            return FIELDS[name]
    empty = {"integer": 1, "number": 1.0, "boolean": True, "object": {}, "array": []}
    return schema.get("default", empty.get(str(schema.get("type")), "text"))


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if value is None:
        return bool(schema.get("nullable"))
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "object": (dict,),
        "array": (list,),
    }
    if "type" not in schema:
        return True
    return isinstance(value, kinds[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))

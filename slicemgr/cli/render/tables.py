"""The columns of each noun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicemgr.cli.render.human import check, number, rate, size, text, when
from slicemgr.cli.render.output import Column, Table, field

if TYPE_CHECKING:
    from typing import Any


def _ssh(sliver: dict[str, Any]) -> str:
    return f"ssh -p {sliver['ssh']['port']} root@{sliver['ssh']['host']}"


def _ports(sliver: dict[str, Any]) -> str:
    return f"{sliver['ports']['first']}-{sliver['ports']['last']}"


def _sliver_error(row: dict[str, Any]) -> object:
    if row["error"] is None and row.get("unknown_since"):
        return f"node {row['node']} has not reported since {row['unknown_since']}"
    return row["error"]


def _node_state(row: dict[str, Any]) -> object:
    """The state, or silent or lost if the node does not report."""
    liveness = row.get("liveness", "alive")
    return row.get("state") if liveness == "alive" else liveness


def _port_pool(node: dict[str, Any]) -> str:
    first, last = (node["facts"].get(f"ports_{end}") for end in ("first", "last"))
    return "" if first is None or last is None else f"{first}-{last}"


def _clock(node: dict[str, Any]) -> str:
    """How far the clock of a node differs from the centre's; "": not known, or it is the centre's own."""
    ahead = node["facts"].get("clock_ahead")
    if ahead is None:
        return ""
    return f"{abs(ahead):.0f} s {'behind' if ahead < 0 else 'ahead'}" if ahead else "right"


SLICES = Table(
    (
        field("name", whole=True),
        field("type"),
        field("state"),
        Column("slivers", lambda row: len(row["slivers"])),
        field("image"),
        field("project"),
        field("owner"),
        field("created_at", when),
        field("expires_at", when),
        field("notice"),
    ),
    ("name", "type", "state", "slivers", "image", "project", "expires_at"),
)
SLIVERS = Table(
    (
        field("index"),
        field("id"),
        field("node"),
        field("state"),
        field("address"),
        Column("ssh", _ssh, whole=True),
        Column("ports", _ports),
        field("limits.cpu", number),
        field("limits.memory", size),
        field("limits.memory_max", size),
        field("limits.disk", size),
        field("limits.pids"),
        field("limits.net_in", rate),
        field("limits.net_out", rate),
        Column("memory_used", lambda row: row["usage"]["memory"], size),
        Column("working", lambda row: row["usage"].get("working", row["usage"]["memory"]), size),
        Column("charged", lambda row: row["usage"].get("charged"), size),
        Column("guest_memory", lambda row: row["usage"]["guest_memory"], size),
        field("acceleration"),
        field("booted"),
        field("keys_missing"),
        field("oom_kills"),
        field("oom_at", when),
        Column("disk_used", lambda row: row["usage"]["disk"], size),
        Column("fingerprint", lambda row: row["ssh"]["fingerprint"], whole=True),
        field("unknown_since", when),
        Column("error", _sliver_error),
    ),
    ("index", "state", "ssh", "ports", "memory_used", "memory", "disk_used", "disk", "error"),
    varied=("node",),
)
IMAGES = Table(
    (
        field("name", whole=True),
        field("state"),
        field("format"),
        field("virtual_size", size),
        field("file_size", size),
        field("arch"),
        field("os"),
        field("used_by"),
        field("project"),
        field("kernel_config", size),
        field("created_at", when),
        field("sha256"),
    ),
    ("name", "state", "format", "virtual_size", "arch", "os", "used_by", "created_at"),
)
IMAGES_ON_NODES = Table(
    (
        field("name", whole=True),
        field("node", whole=True),
        field("site"),
        field("state"),
        field("disk"),
        field("base"),
        field("base_size", size),
        field("updated_at", when),
        field("error"),
        field("sha256"),
    ),
    ("name", "node", "state", "disk", "base", "base_size", "updated_at", "error"),
)
IMAGES_AND_NODES = Table(tuple({one.name: one for one in (*IMAGES_ON_NODES.columns, *IMAGES.columns)}.values()), ())
NODES = Table(
    (
        field("name", whole=True),
        field("site"),
        Column("state", _node_state),
        field("drained"),
        field("silent_since", when),
        field("version"),
        field("beat_at", when),
        field("address"),
        field("agent_seen_at", when),
        Column("slivers", lambda row: row["used"]["slivers"]),
        Column("spares", lambda row: row["used"].get("spares")),
        field("capacity.cpus", number),
        field("capacity.memory", size),
        field("capacity.disk", size),
        Column("memory_limits", lambda row: row["used"]["memory_limits"], size),
        Column("memory_guarantees", lambda row: row["used"].get("memory_guarantees"), size),
        Column("ports_used", lambda row: row["used"]["ports"]),
        field("facts.addresses"),
        Column("port_pool", _port_pool),
        Column("denied", lambda row: " ".join(row["facts"].get("denied") or ())),
        Column("clock", _clock),
        field("facts.kernel"),
        field("facts.quota"),
        field("facts.acceleration"),
        field("facts.cgroup"),
        field("facts.firewall"),
        field("facts.swap_total", size),
        field("facts.zswap"),
    ),
    (
        "name",
        "site",
        "state",
        "address",
        "agent_seen_at",
        "slivers",
        "cpus",
        "memory",
        "disk",
        "memory_limits",
        "ports_used",
    ),
)
NODE = Table(
    NODES.columns, (*NODES.default, "spares", "addresses", "port_pool", "denied", "clock", "swap_total", "zswap")
)
OPERATIONS = Table(
    (
        field("id", whole=True),
        field("kind"),
        field("state"),
        field("slice"),
        field("project"),
        field("image"),
        field("user"),
        field("created_at", when),
        field("finished_at", when),
        Column("progress", lambda row: f"{row['progress']['done']}/{row['progress']['total']}"),
        field("error"),
        field("hint"),
    ),
    ("id", "kind", "state", "slice", "image", "progress", "created_at", "error"),
)
STEPS = Table(
    (field("sliver"), field("name"), field("state"), field("percent"), field("detail")),
    ("sliver", "name", "state", "detail"),
)
EVENTS = Table(
    (
        field("id"),
        field("at", when),
        field("user"),
        field("action"),
        field("project"),
        field("slice"),
        field("detail"),
        field("address"),
    ),
    ("at", "user", "action", "slice", "detail"),
)
CHECKS = Table(
    (field("name", whole=True), field("ok", check), field("detail"), field("remedy", text)),
    ("name", "ok", "detail", "remedy"),
)
AUDIT = Table(
    (field("row", whole=True), field("kind"), field("expected"), field("seen"), field("verdict", whole=True)),
    ("row", "kind", "expected", "seen", "verdict"),
)
LEFTOVERS = Table(
    (field("what"), field("name", whole=True), field("removed"), field("detail")), ("what", "name", "removed", "detail")
)

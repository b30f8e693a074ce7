"""The columns of people, projects, credentials and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicemgr.cli.render.human import number, size, text, when
from slicemgr.cli.render.human import span as span_text
from slicemgr.cli.render.output import Column, Table, field

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _pairs(value: object) -> str:
    return text(", ".join(f"{one} ({role})" for one, role in value.items()) if isinstance(value, dict) else value)


def _names(value: object) -> str:
    return text(", ".join(value) if isinstance(value, list) else value)


def _span(value: object) -> str:
    return span_text(value) if isinstance(value, int | float) else "-"


def _values(value: object) -> str:
    return text(", ".join(f"{one} {two}" for one, two in value.items()) if isinstance(value, dict) else value)


def _of(name: str, human: Callable[[object], str]) -> Column:
    """The usage and the limit, as `USED of LIMIT`."""

    def get(row: dict[str, Any]) -> list[object]:
        return [row["used"][name], row["quota"][name]]

    def show(value: object) -> str:
        used, most = value if isinstance(value, list) else (None, None)
        return human(used) if most is None else f"{human(used)} of {human(most)}"

    return Column(name, get, show)


USERS = Table(
    (
        field("name", whole=True),
        field("full_name"),
        field("email"),
        field("admin"),
        field("enabled"),
        field("projects", _pairs),
        field("default_project"),
        field("origin"),
        field("openid"),
        field("has_password"),
        field("invited_until", when),
        field("created_at", when),
    ),
    ("name", "full_name", "email", "admin", "enabled", "projects", "origin", "has_password"),
)
PROJECTS = Table(
    (
        field("name", whole=True),
        field("role"),
        _of("slices", number),
        _of("slivers", number),
        _of("vcpus", number),
        _of("memory", size),
        _of("disk", size),
        _of("ports", number),
        field("quota.lease", _span),
        Column("members", lambda row: [one["user"] for one in row["members"]], _names),
        field("description"),
        field("created_at", when),
    ),
    ("name", "role", "slices", "slivers", "vcpus", "memory", "disk", "ports", "lease", "members"),
)
INVITATIONS = Table(
    (
        field("id", whole=True),
        field("project"),
        field("invitee"),
        field("role"),
        field("invited_by"),
        field("created_at", when),
        field("expires_at", when),
    ),
    ("id", "project", "invitee", "role", "invited_by", "expires_at"),
)
LIMITS = Table(
    tuple(field(name, whole=True) for name in ("resource", "used", "quota", "ceiling")),
    ("resource", "used", "quota", "ceiling"),
)
KEYS = Table(
    (
        field("id", whole=True),
        field("type"),
        field("fingerprint", whole=True),
        field("comment"),
        field("created_at", when),
        field("user"),
        field("key"),
        field("running_slices"),
    ),
    ("id", "type", "fingerprint", "comment", "created_at", "running_slices"),
)
TOKENS = Table(
    (
        field("id", whole=True),
        field("label"),
        field("scope"),
        field("created_at", when),
        field("expires_at", when),
        field("used_at", when),
        field("used_from"),
        field("current"),
        field("user"),
    ),
    ("id", "label", "scope", "expires_at", "used_at", "used_from", "current"),
)
NEW_TOKEN = Table((field("id", whole=True), field("token", whole=True), field("expires_at", when)), ("token",))
SESSIONS = Table(
    (
        field("id", whole=True),
        field("address"),
        field("agent"),
        field("created_at", when),
        field("used_at", when),
        field("expires_at", when),
        field("current"),
        field("user"),
    ),
    ("id", "address", "agent", "used_at", "expires_at"),
)
REQUESTS = Table(
    (
        field("id", whole=True),
        field("state"),
        field("project"),
        field("user"),
        field("name"),
        field("reason"),
        field("exceeds"),
        field("created_at", when),
        field("decided_by"),
        field("decided_at", when),
        field("answer"),
        field("operation"),
        field("granted", _values),
        field("unread"),
        field("action"),
        field("wanted", _values),
    ),
    ("id", "state", "project", "user", "name", "exceeds", "reason", "granted", "answer", "action"),
)

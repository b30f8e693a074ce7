"""The cost of a slice for its project, before the form is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from slicemgr.config import Config, parse_duration, parse_size
from slicemgr.errors import Refused
from slicemgr.policy import quota
from slicemgr.policy.quota import Amounts, OverQuota
from slicemgr.service.projects import projects
from slicemgr.service.slices import specs
from slicemgr.service.views.formats import when
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import words
from slicemgr.web.pages.form import sentence

FIELDS = {
    "cpu": "CPU cores",
    "memory": "Memory",
    "memory_guarantee": "Memory guarantee",
    "memory_weight": "Memory weight",
    "disk": "Disk",
    "count": "Number of slivers",
    "lease": "Lease",
    "ports": "Ports per sliver",
    "net_in": "Ingress rate",
    "net_out": "Egress rate",
}


@dataclass(frozen=True, slots=True)
class Size:
    """A predefined size. cpu in cores of one sliver."""

    title: str
    cpu: float
    memory: str
    disk: str


SIZES = {
    "small": Size("Small", 0.5, "256M", "2G"),
    "medium": Size("Medium", 1.0, "1G", "8G"),
    "large": Size("Large", 2.0, "4G", "20G"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """bars: label, resource, used, most (None: no limit), wanted. over: the exceeded limits as texts.

    invalid: field, label and error of the fields that count as their default because they are invalid.
    """

    project: str
    bars: list[tuple[str, str, float, float | None, float]]
    over: list[str]
    ends: str | None
    longest: timedelta | None
    count: int
    each: Mapping[str, Any] = field(default_factory=dict)
    invalid: tuple[tuple[str, str, str], ...] = ()


def estimate(c: Connection, config: Config, project: str, asked: Mapping[str, Any], usual: timedelta) -> Cost:
    """The cost from an incomplete form: unreadable fields count as their default.

    usual: the project's default lease.
    """
    most, used = projects.limits(c, project), projects.used(c, project)
    count = min(max(1, _number(asked.get("count"), 1)), 100_000)
    cpu, memory, disk = _each(asked, config)
    ports = _number(asked.get("ports"), config.network.ports_per_sliver)
    guarantee = min(memory, _size(asked.get("memory_guarantee"), config.limits.memory_guarantee.bytes))
    sizes = {"memory": memory, "memory_guarantee": guarantee, "disk": disk}
    all_sizes = {name: size * int(count) for name, size in sizes.items()}
    wanted = Amounts(slices=1, slivers=int(count), vcpus=cpu * count, ports=int(ports * count), **all_sizes)
    lease = _lease(asked.get("lease"), usual)
    over = []
    try:
        quota.check(most, used, wanted, lease)
    except OverQuota as error:
        over = [one.message[:1].upper() + one.message[1:] for one in error.errors]
    bars = [
        (words.LABELS[name], name, getattr(used, name), getattr(most, name), getattr(wanted, name))
        for name in quota.RESOURCES
        if name != "memory_guarantee" or used.memory_guarantee or guarantee
    ]
    if most.lease is not None and lease > most.lease:
        bars.append(("Lease", "lease", 0, most.lease.total_seconds(), lease.total_seconds()))
    each = {"cpu": cpu, **sizes}
    return Cost(project, bars, over, when(_end(lease)), most.lease, int(count), each)


def invalid(body: Mapping[str, Any], config: Config) -> tuple[tuple[str, str, str], ...]:
    """The invalid ones of `FIELDS` in the JSON of `POST /slices`, which may be incomplete."""
    asked = {name: value for name, value in body.items() if name in FIELDS}
    return tuple((one.field, FIELDS[one.field], sentence(one)) for one in specs.objections(asked, config))


def _end(lease: timedelta) -> datetime | None:
    try:
        return utcnow() + lease
    except OverflowError:
        return None


def _each(asked: Mapping[str, Any], config: Config) -> tuple[float, int, int]:
    """Cores, bytes of memory and of disk of each sliver."""
    limits = config.limits
    cpu = _number(asked.get("cpu"), limits.cpu)
    return cpu, _size(asked.get("memory"), limits.memory.bytes), _size(asked.get("disk"), limits.disk.bytes)


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return default
    return number if 0 < number < 1e6 else default


def _size(value: Any, default: int) -> int:
    try:
        return min(parse_size(value), 1 << 50) if value else default
    except Refused:
        return default


def _lease(value: Any, default: timedelta) -> timedelta:
    try:
        return parse_duration(value) if value else default
    except Refused:
        return default

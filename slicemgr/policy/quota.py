"""Quotas of projects and their check against a request. Pure: the caller holds the write transaction.

A quota is granted at once. A ceiling is what a PI may grant beyond it. None in either: limited by the node alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Limits, SliceSpec
from slicemgr.policy import leases
from slicemgr.policy.allocate import size_text

REQUEST_HINT = "give a reason to submit a request, delete unused slices, or request less"
CEILING_HINT = "request less, or let an admin of the testbed decide, who may grant more"
ADMIN_HINT = "delete unused slices, or ask an admin of the testbed for a larger quota"
_NEARLY = 1e-6  # of a core: sums of fractions are not exact


@dataclass(frozen=True, slots=True)
class Amounts:
    """Allocated or requested resources: vcpus in cores, memory and disk in bytes, of all slivers together."""

    slices: int = 0
    slivers: int = 0
    vcpus: float = 0.0
    memory: int = 0
    memory_guarantee: int = 0
    disk: int = 0
    ports: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    """The limit of each resource; lease: the longest. None: limited by the node alone."""

    slices: int | None = None
    slivers: int | None = None
    vcpus: float | None = None
    memory: int | None = None
    memory_guarantee: int | None = None
    disk: int | None = None
    ports: int | None = None
    lease: timedelta | None = None


UNLIMITED = Quota()
SIZES = ("memory", "memory_guarantee", "disk")  # resources in bytes
RESOURCES = tuple(one.name for one in fields(Amounts))
NOUNS = {
    "vcpus": "CPU cores",
    "memory": "of memory",
    "memory_guarantee": "of guaranteed memory",
    "disk": "of disk",
    "lease": "of lease",
}
_REQUEST_FIELDS = {"slices": "name", "slivers": "count", "vcpus": "cpu"}  # the field of a request


def _number(value: float) -> str:
    return f"{value:g}"


_TEXTS: dict[str, Callable[[float], str]] = {name: lambda value: size_text(int(value)) for name in SIZES}


class OverQuota(Refused):
    """The request exceeds the project's quota. The error is the first reason; `errors` has one for each resource."""

    def __init__(self, errors: list[Refused]) -> None:
        first = errors[0]
        super().__init__(Code.QUOTA, first.message, hint=first.hint, field=first.field)
        self.errors = tuple(errors)


def wanted(spec: SliceSpec) -> Amounts:
    """The resources that a slice needs."""
    limits: Limits = spec.limits
    count = spec.count
    return Amounts(
        slices=1,
        slivers=count,
        vcpus=limits.cpu * count,
        ports=spec.ports * count,
        **{name: getattr(limits, name) * count for name in SIZES},
    )


def check(
    quota: Quota,
    used: Amounts,
    more: Amounts,
    lease: timedelta | None = None,
    *,
    hint: str = REQUEST_HINT,
    limit: str = "project quota",
) -> None:
    """Raises OverQuota with every exceeded limit, unless `used` and `more` together are within the quota.

    limit: what the errors call it.
    Resources of which nothing more is requested are not checked: a grant beyond one limit does not block the others.
    """
    errors = []
    for name in RESOURCES:
        most, has, adds = getattr(quota, name), getattr(used, name), getattr(more, name)
        if most is None or not adds or has + adds <= most + (_NEARLY if name == "vcpus" else 0):
            continue
        text = _TEXTS.get(name, _number)
        left = text(max(0, most - has))
        message = f"{text(adds)} {NOUNS.get(name, name)} requested, {left} of {text(most)} left in the {limit}"
        errors.append(Refused(Code.QUOTA, message, hint=hint, field=_REQUEST_FIELDS.get(name, name)))
    if lease is not None and quota.lease is not None and lease > quota.lease:
        message = f"{leases.text(lease)} exceeds the longest lease in the {limit}, {leases.text(quota.lease)}"
        errors.append(Refused(Code.QUOTA, message, hint=hint, field="lease"))
    if errors:
        raise OverQuota(errors)


def check_raised(quota: Quota, ceiling: Quota) -> None:
    """Refused(QUOTA) if a quota that a PI sets exceeds the ceiling."""
    for one in fields(Quota):
        least, most = getattr(quota, one.name), getattr(ceiling, one.name)
        if most is not None and (least is None or least > most):
            text = leases.text(most) if one.name == "lease" else _TEXTS.get(one.name, _number)(most)
            hint = "an admin of the testbed can raise the ceiling"
            message = f"exceeds the ceiling of the project, {text}"
            raise Refused(Code.QUOTA, message, hint=hint, field=f"quota.{one.name}")


def check_ceiling(quota: Quota, ceiling: Quota) -> None:
    """Refused(INVALID) if the ceiling is below the quota."""
    for one in fields(Quota):
        least, most = getattr(quota, one.name), getattr(ceiling, one.name)
        if most is not None and (least is None or most < least):
            raise invalid(f"ceiling.{one.name}", "is below the quota", "use at least the quota, or null for no ceiling")

"""Projects, their quotas and what they use. For members see `service.projects.members`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.config import Config, LeaseConfig, QuotaConfig, parse_duration, parse_size
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import DEFAULT_PROJECT, MIB, Role
from slicemgr.policy import access, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import Amounts, Quota
from slicemgr.service.leases import rules
from slicemgr.service.nodes import operations
from slicemgr.service.projects import members
from slicemgr.service.slices import specs
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

QUOTA, CEILING = "quota", "ceiling"
# Made once: to make it takes longer than to execute it.
_QUOTAS = sa.select(t.quotas).where(t.quotas.c.project.in_(sa.bindparam("projects", expanding=True)))
_MOST_BYTES = 1 << 55
_MOST = 1_000_000
_LONGEST_DESCRIPTION = 1000


# limits and use


def limits(c: Connection, project: str, level: str = QUOTA) -> Quota:
    """The quota (granted at once) or, with level `ceiling`, what a PI may grant."""
    return all_limits(c, [project])[project, level]


def all_limits(c: Connection, projects: Collection[str]) -> dict[tuple[str, str], Quota]:
    """Quota and ceiling of each project."""
    found = {(name, level): quota.UNLIMITED for name in projects for level in (QUOTA, CEILING)}
    for row in c.execute(_QUOTAS, {"projects": list(projects)}):
        lease = None if row.lease is None else timedelta(seconds=row.lease)
        found[row.project, row.level] = Quota(**{name: getattr(row, name) for name in quota.RESOURCES}, lease=lease)
    return found


def used(c: Connection, project: str) -> Amounts:
    """The resources allocated to the project, running or not; its own images count as disk."""
    return all_used(c, [project])[project]


def all_used(c: Connection, projects: Collection[str]) -> dict[str, Amounts]:
    of, (slices_of, images_of) = {"projects": list(projects)}, _queries_of_use()
    found = {name: Amounts() for name in projects}
    for name, slices, slivers, cpu, *sizes in c.execute(slices_of, of):
        found[name] = Amounts(slices, slivers, float(cpu or 0), *(int(one or 0) for one in sizes))
    for name, bytes in c.execute(images_of, of):
        found[name] = replace(found[name], disk=found[name].disk + int(bytes))
    return found


@cache
def _queries_of_use() -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Of slices and of images. Kept, because making them takes longer than their execution."""
    s, l, i = t.slivers.c, t.slices.c, t.images.c
    those: sa.BindParameter[Any] = sa.bindparam("projects", expanding=True)
    sums = (sa.func.sum(one) for one in (s.cpu, s.memory, s.memory_guarantee, s.disk, s.port_count))
    query = sa.select(l.project, sa.func.count(l.id.distinct()), sa.func.count(s.serial), *sums)
    query = query.select_from(t.slices).outerjoin(t.slivers, s.slice == l.id).group_by(l.project)
    held = sa.select(i.project, sa.func.sum(i.file_size + i.base_size)).group_by(i.project)
    return query.where(l.project.in_(those)), held.where(i.project.in_(those))


def lease_policy(c: Connection, config: Config, project: str) -> LeaseConfig:
    """The lease policy of the project, restricted by its longest lease."""
    return rules.of(c, config, project).lease


check_exists = rules.check_exists


# changes


def create(store: Store, config: Config, raw: Mapping[str, Any], by: Principal) -> str:
    """Create a project.

    raw: name, and description, quota, ceiling, pi (a user). Refused(CONFLICT): the name is taken.
    """
    access.make_project(by)
    known = ("name", "description", "quota", "ceiling", "pi")
    for unknown in sorted(set(raw) - set(known)):
        raise invalid(unknown[:64], "unknown field", f"the fields are {', '.join(known)}")
    name, text = specs.slice_name(raw.get("name") or ""), _description(raw.get("description", ""))
    first = _parse(QUOTA, raw.get("quota") or {}, _default(config.quota, 1))
    most = _parse(CEILING, raw.get("ceiling") or {}, _raised(first, _default(config.quota, config.quota.ceiling)))
    quota.check_ceiling(first, most)
    now = utcnow()
    try:
        with store.write() as c:
            c.execute(t.projects.insert().values(name=name, description=text, created_at=now))
            _write_limits(c, name, QUOTA, first)
            _write_limits(c, name, CEILING, most)
            operations.note(c, by.user, "project create", now, project=name, detail=name, address=by.address)
            if raw.get("pi") is not None:
                members.put(c, name, str(raw["pi"]), Role.PI, by, field="pi")
    except exc.IntegrityError as error:
        message = f"there is already a project {name!r}"
        raise Refused(Code.CONFLICT, message, hint="choose another name", field="name") from error
    return name


def change(store: Store, name: str, raw: Mapping[str, Any], by: Principal) -> None:
    """Change the description as a PI, and the quota within the ceiling; as an admin both without a bound.

    Only the given fields (null: not limited). Refused(QUOTA) if a PI's quota exceeds the ceiling.
    """
    for unknown in sorted(set(raw) - {"description", QUOTA, CEILING}):
        raise invalid(unknown[:64], "unknown field", "the fields are description, quota, ceiling")
    with store.write() as c:
        access.see_project(by, name)
        check_exists(c, name)
        access.describe_project(by, name)
        now, changes = utcnow(), []
        if "description" in raw:
            text = _description(raw["description"])
            c.execute(t.projects.update().where(t.projects.c.name == name).values(description=text))
            changes.append("description")
        if QUOTA in raw or CEILING in raw:
            access.set_quota(by, name)
            if CEILING in raw:
                access.limit_project(by, name)
            both = {level: _parse(level, raw.get(level) or {}, limits(c, name, level)) for level in (QUOTA, CEILING)}
            if not by.admin:
                quota.check_raised(both[QUOTA], both[CEILING])
            elif CEILING not in raw:
                both[CEILING] = _raised(both[QUOTA], both[CEILING])
            quota.check_ceiling(both[QUOTA], both[CEILING])
            for level, value in both.items():
                _write_limits(c, name, level, value)
                changed = raw.get(level) or {}
                changes += [f"{level}.{key} {changed[key]}" for key in sorted(changed)]
        if changes:
            detail = ", ".join(changes)
            operations.note(c, by.user, "project change", now, project=name, detail=detail, address=by.address)


def delete(store: Store, name: str, by: Principal) -> None:
    """Delete a project. Refused(CONFLICT) while it has slices or images, and for the built-in project."""
    with store.write() as c:
        access.see_project(by, name)
        check_exists(c, name)
        access.limit_project(by, name)
        if name == DEFAULT_PROJECT:
            raise Refused(Code.CONFLICT, f"{name} is a built-in project", hint="it cannot be deleted")
        for table, what in ((t.slices, "slices"), (t.images, "images")):
            if c.scalar(sa.select(sa.exists().where(table.c.project == name))):
                raise Refused(Code.CONFLICT, f"project {name} has {what}", hint="delete them first")
        members.project_ends(c, name)
        c.execute(t.projects.delete().where(t.projects.c.name == name))
        operations.note(c, by.user, "project delete", utcnow(), project=name, detail=name, address=by.address)


# input


def _default(config: QuotaConfig, times: float) -> Quota:
    sizes = {name: getattr(config, name).bytes for name in quota.SIZES}
    counts = {name: getattr(config, name) for name in ("slices", "slivers", "ports")}
    whole = {name: int(value * times) for name, value in {**sizes, **counts}.items()}
    return Quota(**whole, vcpus=config.vcpus * times, lease=config.lease * times)


def _raised(first: Quota, most: Quota) -> Quota:
    """Raise a ceiling that was not given to at least the given quota."""
    pairs = ((name, getattr(first, name), getattr(most, name)) for name in (*quota.RESOURCES, "lease"))
    return Quota(
        **{name: None if least is None or value is None else max(least, value) for name, least, value in pairs}
    )


def _parse(level: str, raw: Any, before: Quota) -> Quota:
    """`before` with the changes of `raw`. Refused(INVALID) naming the field, as `quota.memory`."""
    known = (*quota.RESOURCES, "lease")
    if not isinstance(raw, dict):
        raise invalid(level, "must be an object", f"with some of {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        field = f"{level}.{name[:64]}"
        if name not in known:
            raise invalid(field, "unknown field", f"the fields are {', '.join(known)}")
        values[name] = None if value is None else _limit(field, name, value)
    return replace(before, **values)


def _limit(field: str, name: str, value: Any) -> Any:
    if name == "lease":
        span = parse_duration(value if isinstance(value, str) else "", field)
        if span < timedelta(minutes=1):
            raise invalid(field, "is too short", "at least 1m")
        return span
    if name in quota.SIZES:
        if isinstance(value, bool) or not isinstance(value, str | int) or str(value).startswith("-"):
            raise invalid(field, f"{str(value)[:40]!r} is not a size", "write it as 512M, 2G or a number of bytes")
        if isinstance(value, str) and (meant := specs.with_unit(value.strip(), MIB)):
            raise invalid(field, f"{value.strip()} B is too little", f"did you mean {meant}?")
        return min(parse_size(value, field), _MOST_BYTES)
    if name == "vcpus" and isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return float(value)
    if name == "vcpus" or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise invalid(field, f"{str(value)[:40]!r} is not a number", f"0 to {_MOST}, or null for no limit")
    return value


def _description(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_DESCRIPTION:
        raise invalid("description", "must be text", f"at most {_LONGEST_DESCRIPTION} characters")
    return value


def _write_limits(c: Connection, project: str, level: str, value: Quota) -> None:
    q = t.quotas.c
    row = asdict(value)
    row["lease"] = None if value.lease is None else int(value.lease.total_seconds())
    c.execute(t.quotas.delete().where(q.project == project, q.level == level))
    c.execute(t.quotas.insert().values(project=project, level=level, **row))

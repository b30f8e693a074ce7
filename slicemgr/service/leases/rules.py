"""The lease policy of a project: its own settings, and the node's where it has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config, LeaseConfig, parse_duration
from slicemgr.errors import invalid
from slicemgr.policy import access, leases
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

FIELDS = ("default", "window", "reminders", "exempt")
_PIS = frozenset(("default", "reminders"))  # what a PI may set; the longest lease is set by admins
_MOST_REMINDERS = 8
_SHORTEST = timedelta(minutes=1)
_QUOTA = "quota"  # the level whose row has the longest lease


_Q = t.quotas.c
_NAMES: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
# Made once: to make them takes longer than to execute them.
_LONGEST = sa.select(_Q.project, _Q.lease).where(_Q.level == _QUOTA, _Q.lease.is_not(None), _Q.project.in_(_NAMES))
_PROJECT = sa.select(t.projects.c.name).where(t.projects.c.name == sa.bindparam("project"))
_OWN = sa.select(t.lease_rules).where(t.lease_rules.c.project.in_(_NAMES))


@dataclass(frozen=True, slots=True)
class Rules:
    """exempt: the project's leases never end. own: the names of the settings that the project overrides."""

    lease: LeaseConfig
    exempt: bool = False
    own: tuple[str, ...] = ()


def of(c: Connection, config: Config, project: str) -> Rules:
    return all_of(c, config, [project])[project]


def all_of(c: Connection, config: Config, projects: Collection[str]) -> dict[str, Rules]:
    """The rules of each project, in two queries."""
    names = tuple(set(projects))
    longest = {project: timedelta(seconds=seconds) for project, seconds in c.execute(_LONGEST, {"names": names})}
    own = {row.project: row for row in c.execute(_OWN, {"names": names})}
    found = {}
    for name in names:
        overrides: dict[str, Any] = {}
        if (row := own.get(name)) is not None:
            spans = {"default": row.default, "window": row.window}
            overrides = {key: timedelta(seconds=value) for key, value in spans.items() if value is not None}
            if row.reminders is not None:
                overrides["reminders"] = tuple(timedelta(seconds=one) for one in row.reminders)
        most = min(longest.get(name, config.lease.longest), config.lease.longest)
        lease = replace(config.lease, **overrides, longest=most)
        lease = replace(lease, default=min(lease.default, most))
        exempt = row is not None and row.exempt
        found[name] = Rules(lease, exempt, (*overrides, *(("exempt",) if exempt else ())))
    return found


def earliest_reminder(c: Connection, config: Config) -> timedelta:
    """How long before the end the first reminder of any project is sent."""
    r = t.lease_rules.c
    own = [timedelta(seconds=one) for row in c.scalars(sa.select(r.reminders)) for one in row or ()]
    return max([*config.lease.reminders, *own], default=timedelta(0))


def change(store: Store, config: Config, project: str, raw: Mapping[str, Any], by: Principal) -> None:
    """Set default and reminders as a PI, window and exempt as an admin; null: as the node.

    Refused(INVALID) by field.
    """
    for unknown in sorted(set(raw) - set(FIELDS)):
        raise invalid(unknown[:64], "unknown field", f"the fields are {', '.join(FIELDS)}")
    access.see_project(by, project)
    with store.write() as c:
        check_exists(c, project)
        access.describe_project(by, project)
        if set(raw) - _PIS:
            access.limit_project(by, project)
        before = of(c, config, project)
        values = {name: _parse(name, value, before.lease) for name, value in raw.items()}
        if not values:
            return
        if not c.execute(t.lease_rules.update().where(t.lease_rules.c.project == project).values(values)).rowcount:
            c.execute(t.lease_rules.insert().values(project=project, **values))
        if before.exempt and values.get("exempt") is False:
            _begin_again(c, project, before.lease.default)
        detail = ", ".join(f"{name} {_shown(value)}" for name, value in sorted(raw.items()))
        operations.note(c, by.user, "project leases", utcnow(), project=project, detail=detail, address=by.address)


def check_exists(c: Connection, project: str) -> None:
    if c.scalar(_PROJECT, {"project": project}) is None:
        raise access.missing("project", project)


def _begin_again(c: Connection, project: str, lease: timedelta) -> None:
    """Restart the leases of a project that is no longer exempt, so that none ends at once."""
    now, l = utcnow(), t.slices.c
    values = {"expires_at": now + lease, "renewed_at": now, "reminded": None}
    c.execute(t.slices.update().where(l.project == project, l.expires_at < now + lease).values(values))


def view(c: Connection, config: Config, project: str, by: Principal) -> dict[str, Any]:
    """The effective policy, in seconds. own: the settings that the project overrides. window 0: renewal at any time."""
    access.see_project(by, project)
    check_exists(c, project)
    rules = of(c, config, project)
    names = ("default", "longest", "grace", "window")
    return {
        "project": project,
        **{name: int(getattr(rules.lease, name).total_seconds()) for name in names},
        "reminders": [int(one.total_seconds()) for one in rules.lease.reminders],
        "exempt": rules.exempt,
        "own": list(rules.own),
    }


def _shown(value: Any) -> str:
    if value is None:
        return "as the node"
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse(name: str, value: Any, lease: LeaseConfig) -> Any:
    """The value for the column."""
    if name == "exempt":
        if not isinstance(value, bool):
            raise invalid("exempt", "must be true or false")
        return value
    if value is None:
        return None
    if name == "reminders":
        if not isinstance(value, list) or len(value) > _MOST_REMINDERS:
            raise invalid(name, "must be a list of durations before the end", f"at most {_MOST_REMINDERS}: 3d, 1d, 2h")
        return sorted({int(_span(name, one, _SHORTEST).total_seconds()) for one in value}, reverse=True)
    if name == "window":
        return int(_span(name, value, timedelta(0)).total_seconds())
    span = _span(name, value, _SHORTEST)
    if span > lease.longest:
        raise invalid(name, f"{leases.text(span)} exceeds the longest lease", f"at most {leases.text(lease.longest)}")
    return int(span.total_seconds())


def _span(name: str, value: Any, least: timedelta) -> timedelta:
    span = parse_duration(value if isinstance(value, str) else "", name)
    if span < least:
        raise invalid(name, "is too short", f"at least {leases.text(least)}")
    return span

"""Decide requests beyond a project's quota; `slices.create` and `limit_changes.resize` queue them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import RequestState
from slicemgr.policy import access, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import Quota
from slicemgr.service.accounts import authentication
from slicemgr.service.projects import projects
from slicemgr.service.slices import decisions, limit_changes, request_queue, slices, specs
from slicemgr.service.slices.decisions import granted_text
from slicemgr.service.slices.slices import Created, Draft
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

LONGEST_REASON = 2000
TRIMMED = ("count", "ports", "lease", *specs.LIMITS)  # fields that may be reduced when granting
TRIMMED_RESIZE = tuple(limit_changes.FIELDS)


def reason(value: Any, *, needed: bool = False) -> str:
    """The reason for a request or a decision. Refused(INVALID)."""
    if value is None or (isinstance(value, str) and not value.strip()):
        if needed:
            raise invalid("reason", "is missing", "give a reason for the requester")
        return ""
    if not isinstance(value, str) or len(value) > LONGEST_REASON:
        raise invalid("reason", "must be text", f"at most {LONGEST_REASON} characters")
    return value.strip()


def grant(store: Store, config: Config, id: str, trimmed: Mapping[str, Any], answer: str, by: Principal) -> str:
    """Create or resize the slice, with the values in `trimmed` replacing those of the request; the operation's id.

    The user of the request gets mail and finds the replaced values in it. Refused(QUOTA) beyond the ceiling, unless by
    an admin; Refused(CONFLICT) if it was decided already, or its user may no longer have slices there.
    """
    with store.read() as c:
        resizes = find(c, id, by).slice is not None
    fields = TRIMMED_RESIZE if resizes else TRIMMED
    for unknown in sorted(set(trimmed) - set(fields)):
        raise invalid(unknown[:64], "cannot be changed when granting", f"the fields are {', '.join(fields)}")
    if resizes:
        return _grant_resize(store, config, id, trimmed, answer, by)

    def draft(c: Connection) -> Draft:
        row, allowed = _to_grant(c, id, by)

        def record(c: Connection, made: Created) -> None:
            _granted(c, config, row, trimmed, answer, by, made.operation)

        body, owner, hint = {**row.body, **trimmed}, _still_there(c, row), quota.CEILING_HINT
        return Draft(body, project=row.project, owner=owner, allowed=allowed, hint=hint, record=record)

    return slices.create(store, config, draft, by).operation


def _grant_resize(store: Store, config: Config, id: str, trimmed: Mapping[str, Any], answer: str, by: Principal) -> str:
    with store.write() as c:
        row, allowed = _to_grant(c, id, by)
        _still_there(c, row)
        l = t.slices.c
        resized = c.execute(sa.select(l.id, l.name, l.project).where(l.id == row.slice)).first()
        if resized is None:
            raise Refused(Code.CONFLICT, f"slice {row.name} no longer exists", hint="decline the request")
        changes = {**row.body, **(limit_changes.read(trimmed) if trimmed else {})}
        operation = limit_changes.change(c, config, resized, changes, by, allowed)
        _granted(c, config, row, changes, answer, by, operation)
    wake(config.wake_socket)
    return operation


def _to_grant(c: Connection, id: str, by: Principal) -> tuple[Row[*tuple[Any, ...]], Quota]:
    """The row of a waiting request that the user may decide, and the limits of what the user may grant."""
    row = _waiting(c, id, by)
    access.decide_request(by, row.project, row.user, id)
    return row, quota.UNLIMITED if by.admin else projects.limits(c, row.project, projects.CEILING)


def _granted(
    c: Connection,
    config: Config,
    row: Row[*tuple[Any, ...]],
    trimmed: Mapping[str, Any],
    answer: str,
    by: Principal,
    operation: str,
) -> None:
    less = {name: value for name, value in trimmed.items() if value != row.body.get(name)}
    _decide(c, row, RequestState.GRANTED, answer, by, operation, less)
    request_queue.note(c, "request grant", dict(row._mapping), by, granted_text(less, row.body))
    decisions.send(c, config, row.id)


def decline(store: Store, id: str, answer: str, by: Principal, config: Config | None = None) -> None:
    """Decline with the reason `answer`. config: also send mail to the user of the request."""
    with store.write() as c:
        row = _waiting(c, id, by)
        access.decide_request(by, row.project, row.user, id)
        _decide(c, row, RequestState.DECLINED, answer, by)
        request_queue.note(c, "request decline", dict(row._mapping), by, answer)
        if config is not None:
            decisions.send(c, config, id)


def withdraw(store: Store, id: str, by: Principal) -> None:
    with store.write() as c:
        row = _waiting(c, id, by)
        access.withdraw_request(by, row.project, row.user, id)
        _decide(c, row, RequestState.WITHDRAWN, "", by)
        request_queue.note(c, "request withdraw", dict(row._mapping), by)


def mark_read(store: Store, id: str, by: Principal) -> None:
    """The user of the request has read the decision."""
    q = t.requests.c
    with store.write() as c:
        c.execute(t.requests.update().where(q.id == id, q.user == by.user).values(unread=False))


def find(c: Connection, id: str, by: Principal) -> Row[*tuple[Any, ...]]:
    """The row of a request. Refused(NOT_FOUND) if there is none or the user may not see it."""
    row = c.execute(sa.select(t.requests).where(t.requests.c.id == id)).first()
    if row is None:
        raise access.missing("request", id)
    access.see_request(by, row.project, row.user, id)
    return row


def _waiting(c: Connection, id: str, by: Principal) -> Row[*tuple[Any, ...]]:
    """The row of a waiting request. Access is checked before its state is reported."""
    row = find(c, id, by)
    access.changes(by, "decide requests")
    if row.state != RequestState.WAITING:
        by_whom = f" by {row.decided_by}" if row.decided_by else ""
        raise Refused(Code.CONFLICT, f"this request was already {row.state}{by_whom}", hint="`slicectl request list`")
    return row


def _still_there(c: Connection, row: Row[*tuple[Any, ...]]) -> str:
    """The user of the request, if the account is enabled and still belongs to the project."""
    u = t.users.c
    user = c.execute(sa.select(u.name, u.enabled, u.admin).where(u.name == row.user)).one()
    if not user.enabled or not (user.admin or row.project in authentication.roles_of(c, row.user)):
        raise Refused(Code.CONFLICT, f"{row.user} is no longer a member of project {row.project}", hint="decline it")
    return str(user.name)


def _decide(
    c: Connection,
    row: Row[*tuple[Any, ...]],
    state: RequestState,
    answer: str,
    by: Principal,
    operation: str = "",
    granted: Mapping[str, Any] | None = None,
) -> None:
    """granted: the values that replace those of the request."""
    values = {"state": state, "answer": answer, "operation": operation, "decided_by": by.user, "decided_at": utcnow()}
    more = {"granted": dict(granted) if granted else None, "unread": by.user != row.user}
    c.execute(t.requests.update().where(t.requests.c.id == row.id).values(**values, **more))

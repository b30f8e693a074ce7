"""May somebody who has a console open keep it? Pure: what it needs to know of the rows is given to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, Role, Scope
from slicemgr.policy import access
from slicemgr.policy.access import Principal


@dataclass(frozen=True, slots=True)
class Account:
    """The user as of now. roles: by project."""

    admin: bool
    enabled: bool
    roles: dict[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Credential:
    """The token or session that the console was asked for with."""

    user: str
    scope: Scope
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Place:
    """The sliver that the console is of. name: as `exp/0`."""

    name: str
    slice: str
    project: str
    owner: str
    desired: str


def objection(
    user: str, account: Account | None, credential: Credential | None, place: Place | None, now: datetime
) -> Refused | None:
    """Why not, by the same rule that let them open it; None if nothing has changed for the worse.

    None for account, credential or place: there is none any more.
    """
    if account is None or not account.enabled:
        return Refused(Code.UNAUTHENTICATED, f"the account {user} is disabled", hint="ask an admin of the testbed")
    if credential is None or credential.user != user:
        return Refused(Code.UNAUTHENTICATED, "the session or token that opened it was revoked", hint="sign in again")
    if credential.expires_at is not None and credential.expires_at <= now:
        return Refused(Code.UNAUTHENTICATED, "the session or token that opened it has ended", hint="sign in again")
    if place is None or place.desired == Desired.ABSENT:
        return Refused(Code.CONFLICT, f"{place.name if place else 'the sliver'} has stopped")
    by = Principal(user, account.admin, account.roles, credential.scope)
    try:
        access.change_slice(by, place.project, place.owner, place.slice, "open consoles of")
    except Refused as error:
        return error
    return None

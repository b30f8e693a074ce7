"""Whether a user may keep a console open. Pure: the caller passes the facts of the rows."""

from __future__ import annotations

from datetime import datetime

from slicemgr.errors import Code, Refused
from slicemgr.model import Account, ConsoleTarget, Credential, Desired
from slicemgr.policy import access
from slicemgr.policy.access import Principal


def objection(
    user: str,
    account: Account | None,
    credential: Credential | None,
    target: ConsoleTarget | None,
    now: datetime,
    name: str = "the sliver",
) -> Refused | None:
    """The reason to close the console, by the rules for opening it; None if it may stay open.

    None for account, credential or target: it no longer exists. name: of the sliver, which is then not known from it.
    """
    if account is None or not account.enabled:
        return Refused(Code.UNAUTHENTICATED, f"the account {user} is disabled", hint="ask an admin of the testbed")
    if credential is None or credential.user != user:
        return Refused(
            Code.UNAUTHENTICATED, "the session or token of this connection was revoked", hint="sign in again"
        )
    if credential.expires_at is not None and credential.expires_at <= now:
        return Refused(
            Code.UNAUTHENTICATED, "the session or token of this connection has expired", hint="sign in again"
        )
    if target is None or target.desired == Desired.ABSENT:
        return Refused(Code.CONFLICT, f"{target.name if target else name} has stopped")
    by = Principal(user, account.admin, account.roles, credential.scope)
    try:
        access.change_slice(by, target.project, target.owner, target.slice, "open consoles of")
    except Refused as error:
        return error
    return None

"""Who may do what. An admin may do everything; other roles come with people and projects."""

from __future__ import annotations

from dataclasses import dataclass

from slicemgr.errors import Code, Refused


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    user: str
    admin: bool


def require(principal: Principal, action: str) -> None:
    """Refused(DENIED) unless the principal may do `action`."""
    if not principal.admin:
        raise Refused(Code.DENIED, f"{principal.user} may not {action}", hint="ask an admin of the testbed")

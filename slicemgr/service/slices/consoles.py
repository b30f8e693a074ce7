"""Check the right to open a sliver's console or screen, and issue a short-lived token that is accepted once.

The agent of the service's machine redeems the token itself. For a sliver on another host the service does, and the
host gets an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Desired, Machine, SliverType
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.policy.consoles import objection
from slicemgr.service.nodes import operations
from slicemgr.service.slices import slices
from slicemgr.store import Store, console_rights, console_tickets
from slicemgr.store import tables as t
from slicemgr.store.console_tickets import Ticket
from slicemgr.store.updates import utcnow

_REMEDY = {Desired.STOPPED: "`slicectl start {}`", Desired.PAUSED: "`slicectl resume {}`"}


@dataclass(frozen=True, slots=True)
class ConsoleSliver:
    """A sliver whose console the user may open. screen: whether it has a screen as well."""

    sliver: str
    desired: Desired
    type: SliverType
    screen: bool
    project: str


@dataclass(frozen=True, slots=True)
class RemoteConsole:
    """A redeemed ticket for a sliver on another host. name: as `exp/0`. node: where the sliver is."""

    ticket: Ticket
    name: str
    node: str


def find(
    c: Connection, name: str, index: int, by: Principal, *, project: str | None = None, screen: bool = False
) -> ConsoleSliver:
    """Sliver `index` of a slice. Refused: NOT_FOUND, DENIED, INVALID for the screen of a sliver without one."""
    row, s, l = slices.find(c, name, by, project), t.slivers.c, t.slices.c
    access.change_slice(by, row.project, row.owner, name, "open consoles of")
    query = sa.select(s.id, s.desired, l.type, l.machine).join(t.slices, l.id == s.slice)
    sliver = c.execute(query.where(s.slice == row.id, s.idx == index)).first()
    if sliver is None:
        hint = f"list them with `slicectl show {name}`"
        raise Refused(Code.NOT_FOUND, f"slice {name} has no sliver {index}", hint=hint, field="sliver")
    if screen and sliver.type != SliverType.KVM:
        raise invalid("screen", f"{name} has containers, which have no screen", "open the console")
    has_screen = sliver.type == SliverType.KVM and sliver.machine != Machine.THIN
    if screen and not has_screen:
        raise invalid("screen", f"{name} has thin machines, which have no screen", "open the console")
    return ConsoleSliver(sliver.id, Desired(sliver.desired), SliverType(sliver.type), has_screen, row.project)


def ask(store: Store, name: str, index: int, by: Principal, *, project: str | None = None, screen: bool = False) -> str:
    """A token for the console, or the screen, of sliver `index` of a slice.

    Refused: as `find`, and CONFLICT if the sliver shall not run.
    """
    with store.write() as c:
        target = find(c, name, index, by, project=project, screen=screen)
        if target.desired is not Desired.RUNNING:
            hint = _REMEDY.get(target.desired, "").format(name)
            raise Refused(Code.CONFLICT, f"{name}/{index} is not running", hint=hint)
        now, what = utcnow(), "screen" if screen else "console"
        details = {"slice": name, "project": target.project, "detail": f"sliver {index}", "address": by.address}
        operations.note(c, by.user, what, now, **details)
        return console_tickets.give(c, Ticket(by.user, target.sliver, by.credential, screen), now)


def redeem_remote(store: Store, token: str) -> RemoteConsole | None:
    """Redeem the token of a sliver on a node that joined with a certificate; None for any other token.

    Refused, as the agent does: the right was lost, or the sliver shall not run.
    """
    now = utcnow()
    if not console_tickets.is_remote(store, token):
        return None
    ticket = console_tickets.take(store, token, now)
    if ticket is None:
        return None
    with store.read() as c:
        [why] = objections(c, [ticket], now)
        s, l = t.slivers.c, t.slices.c
        query = sa.select(s.idx, s.desired, s.node, l.name).join(t.slices, l.id == s.slice)
        sliver = c.execute(query.where(s.id == ticket.sliver)).first()
    if why is not None:
        raise why
    if sliver is None or sliver.desired != Desired.RUNNING:
        raise Refused(Code.CONFLICT, "the sliver is not running", hint="show the reason with `slicectl show`")
    return RemoteConsole(ticket, f"{sliver.name}/{sliver.idx}", sliver.node)


def objections(c: Connection, tickets: Sequence[Ticket], now: datetime) -> list[Refused | None]:
    """For each open console: why it must be closed, None if it may stay open."""
    found = console_rights.read(c, tickets)
    return [
        objection(
            one.user,
            found.accounts.get(one.user),
            found.credentials.get(one.credential),
            found.targets.get(one.sliver),
            now,
        )
        for one in tickets
    ]

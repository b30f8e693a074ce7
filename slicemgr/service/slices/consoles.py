"""Check the right to open a sliver's console or screen, and issue a short-lived token that the agent accepts once."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Desired, SliverType
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.service.slices import slices
from slicemgr.store import Store, console_tickets
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_REMEDY = {Desired.STOPPED: "`slicectl start {}`", Desired.PAUSED: "`slicectl resume {}`"}


@dataclass(frozen=True, slots=True)
class ConsoleSliver:
    """A sliver whose console the user may open. remote: on a node that joined with a certificate."""

    sliver: str
    desired: Desired
    type: SliverType
    project: str
    remote: bool


def find(
    c: Connection, name: str, index: int, by: Principal, *, project: str | None = None, screen: bool = False
) -> ConsoleSliver:
    """Sliver `index` of a slice. Refused: NOT_FOUND, DENIED, INVALID for the screen of a container."""
    row, s, l = slices.find(c, name, by, project), t.slivers.c, t.slices.c
    access.change_slice(by, row.project, row.owner, name, "open consoles of")
    remote = s.node.in_(sa.select(t.nodes.c.name).where(t.nodes.c.identity.is_not(None))).label("remote")
    query = sa.select(s.id, s.desired, l.type, remote).join(t.slices, l.id == s.slice)
    sliver = c.execute(query.where(s.slice == row.id, s.idx == index)).first()
    if sliver is None:
        hint = f"list them with `slicectl show {name}`"
        raise Refused(Code.NOT_FOUND, f"slice {name} has no sliver {index}", hint=hint, field="sliver")
    if screen and sliver.type != SliverType.KVM:
        raise invalid("screen", f"{name} has containers, which have no screen", "open the console")
    desired, type_ = Desired(sliver.desired), SliverType(sliver.type)
    return ConsoleSliver(sliver.id, desired, type_, row.project, bool(sliver.remote))


def ask(store: Store, name: str, index: int, by: Principal, *, project: str | None = None, screen: bool = False) -> str:
    """A token for the console, or the screen, of sliver `index` of a slice.

    Refused: as `find`, and CONFLICT if the sliver shall not run, or is on a node that joined with a certificate.
    """
    with store.write() as c:
        target = find(c, name, index, by, project=project, screen=screen)
        if target.remote:
            message = f"{name}/{index} is on another host, whose consoles the service cannot reach"
            raise Refused(Code.CONFLICT, message, hint=f"`slicectl ssh {name}/{index}`")
        if target.desired is not Desired.RUNNING:
            hint = _REMEDY.get(target.desired, "").format(name)
            raise Refused(Code.CONFLICT, f"{name}/{index} is not running", hint=hint)
        now, what = utcnow(), "screen" if screen else "console"
        details = {"slice": name, "project": target.project, "detail": f"sliver {index}", "address": by.address}
        operations.note(c, by.user, what, now, **details)
        return console_tickets.give(c, console_tickets.Ticket(by.user, target.sliver, by.credential, screen), now)

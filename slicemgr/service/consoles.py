"""May somebody open a sliver's console or screen? Then with a token that the node's agent takes once, soon."""

from __future__ import annotations

import sqlalchemy as sa

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Desired, Kind
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service import operations, slices
from slicemgr.store import Store, consoles
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_REMEDY = {Desired.STOPPED: "`slicectl start {}`", Desired.PAUSED: "`slicectl resume {}`"}


def ask(store: Store, name: str, index: int, by: Principal, *, project: str | None = None, screen: bool = False) -> str:
    """A token for the console, or the screen, of sliver `index` of a slice.

    Refused: NOT_FOUND, INVALID for the screen of a container, CONFLICT if the sliver shall not run.
    """
    s, what = t.slivers.c, "screen" if screen else "console"
    with store.write() as c:
        row = slices.find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, "open consoles of")
        if screen and c.scalar(sa.select(t.slices.c.kind).where(t.slices.c.id == row.id)) != Kind.KVM:
            raise invalid("screen", f"{name} has containers, and they have none", "open the console")
        sliver = c.execute(sa.select(s.id, s.desired).where(s.slice == row.id, s.idx == index)).first()
        if sliver is None:
            hint = f"`slicectl show {name}` lists them"
            raise Refused(Code.NOT_FOUND, f"slice {name} has no sliver {index}", hint=hint, field="sliver")
        if sliver.desired != Desired.RUNNING:
            hint = _REMEDY.get(Desired(sliver.desired), "").format(name)
            raise Refused(Code.CONFLICT, f"{name}/{index} is not running", hint=hint)
        now = utcnow()
        detail = f"sliver {index}"
        operations.note(c, by.user, what, now, slice=name, project=row.project, detail=detail, address=by.address)
        return consoles.give(c, consoles.Ticket(by.user, sliver.id, by.credential, screen), now)

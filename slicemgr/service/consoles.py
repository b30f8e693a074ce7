"""May somebody open a sliver's console? Then with a token that the node's agent takes once, soon."""

from __future__ import annotations

import sqlalchemy as sa

from slicemgr.errors import Code, Refused
from slicemgr.model import Desired
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service import operations, slices
from slicemgr.store import Store, consoles
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_REMEDY = {Desired.STOPPED: "`slicectl start {}`", Desired.PAUSED: "`slicectl resume {}`"}


def ask(store: Store, name: str, index: int, by: Principal, *, project: str | None = None) -> str:
    """A token for the console of sliver `index` of a slice. Refused: NOT_FOUND, CONFLICT if it shall not run."""
    s = t.slivers.c
    with store.write() as c:
        row = slices.find(c, name, by, project)
        access.change_slice(by, row.project, row.owner, name, "open consoles of")
        sliver = c.execute(sa.select(s.id, s.desired).where(s.slice == row.id, s.idx == index)).first()
        if sliver is None:
            hint = f"`slicectl show {name}` lists them"
            raise Refused(Code.NOT_FOUND, f"slice {name} has no sliver {index}", hint=hint, field="sliver")
        if sliver.desired != Desired.RUNNING:
            hint = _REMEDY.get(Desired(sliver.desired), "").format(name)
            raise Refused(Code.CONFLICT, f"{name}/{index} is not running", hint=hint)
        now = utcnow()
        detail = f"sliver {index}"
        operations.note(c, by.user, "console", now, slice=name, project=row.project, detail=detail, address=by.address)
        return consoles.give(c, consoles.Ticket(by.user, sliver.id), now)

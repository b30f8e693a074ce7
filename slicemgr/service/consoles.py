"""May somebody open a sliver's console? Then with a token that the node's agent takes once, soon."""

from __future__ import annotations

import sqlalchemy as sa

from slicemgr.errors import Code, Refused
from slicemgr.model import Desired
from slicemgr.policy.access import Principal, require
from slicemgr.service import operations, slices
from slicemgr.store import Store, consoles
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_REMEDY = {Desired.STOPPED: "`slicectl start {}`", Desired.PAUSED: "`slicectl resume {}`"}


def ask(store: Store, name: str, index: int, by: Principal) -> str:
    """A token for the console of sliver `index` of a slice. Refused: NOT_FOUND, CONFLICT if it shall not run."""
    require(by, "open consoles")
    s = t.slivers.c
    with store.write() as c:
        row = slices.find(c, name)
        sliver = c.execute(sa.select(s.id, s.desired).where(s.slice == row.id, s.idx == index)).first()
        if sliver is None:
            hint = f"`slicectl show {name}` lists them"
            raise Refused(Code.NOT_FOUND, f"slice {name} has no sliver {index}", hint=hint, field="sliver")
        if sliver.desired != Desired.RUNNING:
            hint = _REMEDY.get(Desired(sliver.desired), "").format(name)
            raise Refused(Code.CONFLICT, f"{name}/{index} is not running", hint=hint)
        now = utcnow()
        operations.note(c, by.user, "console", now, slice=name, project=row.project, detail=f"sliver {index}")
        return consoles.give(c, consoles.Ticket(by.user, sliver.id), now)

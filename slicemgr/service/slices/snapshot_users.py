"""Uses of snapshots: a clone whose root is not created yet, a restore in progress.

A clone is independent once its root exists: snapshot and original may then be deleted.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import names
from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, OperationState
from slicemgr.store import tables as t

_ENDED = (OperationState.DONE, OperationState.FAILED)
_KINDS = ("snapshot", "restore")


def check_not_cloned(c: Connection, slice_id: str, name: str, snapshot: str | None = None) -> None:
    """Refused(CONFLICT) while a clone is being made of the slice's `snapshot`, None: of any."""
    s, l = t.slivers.c, t.slices.c
    pattern = names.origin(f"{slice_id}-%", snapshot or "%")  # a tag contains no wildcard of LIKE
    wanted = sa.and_(s.origin.like(pattern), s.slice != slice_id, s.host_key == "", s.desired != Desired.ABSENT)
    clone = c.scalar(sa.select(l.name).join(t.slivers, s.slice == l.id).where(wanted).limit(1))
    if clone is not None:
        hint = f"wait until {clone} runs, or delete it"
        raise Refused(Code.CONFLICT, f"slice {clone} is being created from a snapshot of {name}", hint=hint)


def check_idle(c: Connection, slice_id: str, name: str, snapshot: str | None = None) -> None:
    """Refused(CONFLICT) while a snapshot (None: any) of the slice is being made or restored."""
    o = t.operations.c
    wanted = sa.and_(o.slice_id == slice_id, o.kind.in_(_KINDS), o.state.not_in(_ENDED))
    for row in c.execute(sa.select(o.kind, o.params).where(wanted)):
        if snapshot in (None, row.params["snapshot"]):
            doing = "created" if row.kind == "snapshot" else "restored"
            message = f"snapshot {row.params['name']} of slice {name} is being {doing}"
            raise Refused(Code.CONFLICT, message, hint="wait until the operation has ended, see `slicectl op list`")

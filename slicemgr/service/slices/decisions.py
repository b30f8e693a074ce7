"""What the user of a request reads of the decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.model import RequestState
from slicemgr.policy import quota
from slicemgr.policy.allocate import size_text
from slicemgr.service.outbound import mail
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


def granted_text(granted: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> str:
    """`count 2 instead of 40, lease 7d instead of the default`; "": everything was granted as requested."""
    return ", ".join(
        f"{name} {_text(name, value)} instead of {_text(name, wanted.get(name)) or 'the default'}"
        for name, value in sorted((granted or {}).items())
    )


def _text(name: str, value: Any) -> str:
    if name in quota.SIZES and isinstance(value, int):
        return size_text(value)
    return str(value or "")


def send(c: Connection, config: Config, id: str) -> None:
    """Queue mail about a decision to the user of the request, unless the same user decided."""
    row = c.execute(sa.select(t.requests).where(t.requests.c.id == id)).one()
    if row.decided_by == row.user:
        return
    less = granted_text(row.granted, row.body)
    outcome = "granted with less than requested" if less else str(row.state)
    what = f"request {'for' if row.slice is None else 'to resize'} slice {row.name} of project {row.project}"
    lines = [f"Your {what} was {outcome} by {row.decided_by}."]
    if less:
        lines.append(f"Granted: {less}.")
    if row.answer:
        lines.append(f"{row.decided_by} writes:\n\n{row.answer}")
    if row.state == RequestState.GRANTED:
        lines.append(f"`slicectl show {row.project}/{row.name}` shows the slice.")
    if config.web.url:
        lines.append(f"{config.web.url}/requests/{row.id}")
    about = mail.About(row.user, row.name, row.project)
    mail.queue(
        c, config, f"request {row.id} {row.state}", about, f"{what}: {outcome}", "\n\n".join(lines) + "\n", utcnow()
    )

"""The last audit of each node, as `slicectl audit` sent it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import __version__
from slicemgr.errors import Code, Refused, invalid
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.service.views.formats import Json, when
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

CELLS = ("row", "kind", "expected", "seen")
VERDICTS = ("pass", "fail", "not applicable")
MOST_ROWS, LONGEST = 2000, 300  # rows of an audit, characters of a cell


def keep(store: Store, node: str, raw: Mapping[str, Any], by: Principal) -> None:
    """Replace the last audit of the node. raw: began_at and rows. Refused(INVALID) with the wrong field."""
    access.run_on_node(by, "audit")
    rows, began = _rows(raw.get("rows")), _time(raw.get("began_at"))
    now = utcnow()
    values = {
        "began_at": began,
        "ended_at": now,
        "user": by.user,
        "version": __version__,
        "failed": sum(one["verdict"] == "fail" for one in rows),
        "rows": rows,
    }
    with store.write() as c:
        if c.scalar(sa.select(t.nodes.c.name).where(t.nodes.c.name == node)) is None:
            raise Refused(Code.NOT_FOUND, f"there is no node {node!r}", field="node")
        c.execute(t.audits.delete().where(t.audits.c.node == node))
        c.execute(t.audits.insert().values(node=node, **values))
        detail = f"{node}: {values['failed']} of {len(rows)} checks fail"
        operations.note(c, by.user, "audit", now, detail=detail, address=by.address)


def last(c: Connection, node: str, by: Principal) -> Json:
    """The node's last audit. Refused(NOT_FOUND) if there was none."""
    access.run_on_node(by, "audit")
    found = find(c, node)
    if found is None:
        hint = "run one with `slicectl audit`"
        raise Refused(Code.NOT_FOUND, f"the node {node!r} has not been audited", hint=hint, field="node")
    return found


def find(c: Connection, node: str) -> Json | None:
    """The node's last audit, None if there was none. The caller has checked access."""
    row = c.execute(sa.select(t.audits).where(t.audits.c.node == node)).first()
    if row is None:
        return None
    return {
        "node": row.node,
        "began_at": when(row.began_at),
        "ended_at": when(row.ended_at),
        "user": row.user,
        "version": row.version,
        "failed": row.failed,
        "rows": row.rows,
    }


def _rows(given: object) -> list[dict[str, str]]:
    if not isinstance(given, list) or not 0 < len(given) <= MOST_ROWS:
        raise invalid("rows", "must be a list of rows", f"1 to {MOST_ROWS} objects")
    return [_row(one, f"rows[{place}]") for place, one in enumerate(given)]


def _row(given: object, field: str) -> dict[str, str]:
    if not isinstance(given, dict) or set(given) != {*CELLS, "verdict"}:
        raise invalid(field, "must be a row of an audit", f"an object with {', '.join(CELLS)}, verdict")
    for name in CELLS:
        value = given[name]
        if not isinstance(value, str) or len(value) > LONGEST or not value.isprintable():
            raise invalid(f"{field}.{name}", "must be text", f"at most {LONGEST} printable characters")
    if given["verdict"] not in VERDICTS:
        raise invalid(f"{field}.verdict", "is unknown", ", ".join(VERDICTS))
    return {name: given[name] for name in (*CELLS, "verdict")}


def _time(given: object) -> datetime:
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise invalid("began_at", "is not a time", "such as 2026-01-31T12:00:00+00:00")
    return found

"""Pages of lists: each begins after the last row of the previous one, whatever rows were added or deleted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row


class By(NamedTuple):
    """One column of an order. All columns of an order together are unique."""

    column: sa.ColumnElement[Any]
    down: bool = False


class Page:
    """At most `limit` rows after the row with the order values `after`; `next`: those of the last row if there are
    more.

    None instead of a page means all rows.
    """

    def __init__(self, limit: int, after: Sequence[Any] = ()) -> None:
        self.limit = limit
        self.after = tuple(after)
        self.next: tuple[Any, ...] = ()


def rows(
    c: Connection, query: sa.Select[*tuple[Any, ...]], page: Page | None, *order: By
) -> Sequence[Row[*tuple[Any, ...]]]:
    """The rows of one page, in order. The query selects the order's columns under their own names."""
    query = query.order_by(*(one.column.desc() if one.down else one.column for one in order))
    if page is None:
        return c.execute(query).all()
    if page.after:
        query = query.where(_after(order, page.after))
    found = c.execute(query.limit(page.limit + 1)).all()
    if len(found) > page.limit:
        found = found[: page.limit]
        page.next = tuple(getattr(found[-1], str(one.column.key)) for one in order)
    return found


def _after(order: Sequence[By], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Greater in the first column, or equal there and greater in the second, and so on.

    As one comparison of rows where that is possible: databases use an index for it, so that each page costs the same.
    """
    if len(order) > 1 and not any(one.down for one in order):
        pairs = zip(order, values, strict=True)
        return sa.tuple_(*(one.column for one in order)) > sa.tuple_(*(_typed(one, value) for one, value in pairs))
    (first, *rest), (value, *others) = order, values
    beyond = first.column < value if first.down else first.column > value
    return sa.or_(beyond, sa.and_(first.column == value, _after(rest, others))) if rest else beyond


def _typed(one: By, value: Any) -> sa.ColumnElement[Any]:
    return sa.literal(value, one.column.type)

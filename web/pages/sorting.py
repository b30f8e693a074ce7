"""Sorted tables: the column and its direction are in the URL, so that it works without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from flask import request

Row = Mapping[str, Any]
FIELD = "sort"  # the query parameter: a column, with `-` in front in descending order
_NOT_KEPT = frozenset((FIELD, "page", "before", "seen", "all"))


class Sorting:
    """The order of a table. columns: the value of a row by which each column sorts; None comes last in both orders.

    usual: the order that `rows` have already, as in the query.
    """

    def __init__(self, columns: Mapping[str, Callable[[Row], Any]], usual: str = "name") -> None:
        asked = request.args.get(FIELD, "")
        self._columns = columns
        self._usual = usual
        asked = asked if asked.removeprefix("-") in columns else usual
        self.down = asked.startswith("-")
        self.column = asked.removeprefix("-")

    @property
    def value(self) -> str | None:
        """The query parameter of the order; None for the usual one."""
        asked = ("-" if self.down else "") + self.column
        return None if asked == self._usual else asked

    def rows(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows in this order; rows with equal values keep theirs."""
        value = self._columns[self.column]
        known = [one for one in rows if value(one) is not None]
        known.sort(key=value, reverse=self.down)
        return known + [one for one in rows if value(one) is None]

    def url(self, column: str) -> str:
        """The page sorted by the column, or the other way round if it is so already. Filters are kept."""
        kept = [(name, value) for name, value in sorted(request.args.items()) if value and name not in _NOT_KEPT]
        down = column == self.column and not self.down
        return f"{quote(request.path)}?{urlencode([*kept, (FIELD, ('-' if down else '') + column)])}"

    def order(self, column: str) -> str:
        """The value of `aria-sort`."""
        if column != self.column:
            return "none"
        return "descending" if self.down else "ascending"

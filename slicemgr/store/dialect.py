"""Statements that SQLAlchemy has for each database of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection


def insert(c: Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An insert in the dialect of the connection, which supports ON CONFLICT."""
    return insert_into(c.dialect.name, table)


def insert_into(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """The same for a dialect by its name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def among(c: Connection, column: sa.ColumnElement[str], values: Sequence[str]) -> sa.ColumnElement[bool]:
    """Whether a column has one of many values. They are one parameter, so the statement is the same for any number."""
    listed = json.dumps(list(values))
    if c.dialect.name == "postgresql":
        each = sa.func.json_array_elements_text(sa.cast(sa.cast(listed, sa.Text), sa.JSON))
        return column == sa.any_(sa.func.array(sa.select(each).scalar_subquery()))
    return column.in_(sa.select(sa.func.json_each(listed).table_valued("value").c.value))

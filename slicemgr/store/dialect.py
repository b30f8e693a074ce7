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
    return is_listed(c.dialect.name, column, sa.literal(listed(values), sa.Text))


def listed(values: Sequence[str]) -> str:
    """The parameter of `is_listed`."""
    return json.dumps(list(values))


def is_listed(dialect: str, column: sa.ColumnElement[str], values: sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """The same for a statement that is kept. values: a text, from `listed`."""
    if dialect == "postgresql":
        each = sa.func.json_array_elements_text(sa.cast(sa.cast(values, sa.Text), sa.JSON))
        return column == sa.any_(sa.func.array(sa.select(each).scalar_subquery()))
    return column.in_(sa.select(sa.func.json_each(values).table_valued("value").c.value))

"""Statements that SQLAlchemy has for each database of its own."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection


def insert(c: Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An insert in the dialect of the connection, which supports ON CONFLICT."""
    return postgresql.insert(table) if c.dialect.name == "postgresql" else sqlite.insert(table)

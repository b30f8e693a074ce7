"""people and projects: accounts, members, quotas, requests, credentials, and where a change came from"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False)


def _empty(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def _time(name: str, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(), nullable=nullable)


def _user(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["user"], ["users.name"], name=f"fk_{table}_user", ondelete="CASCADE")


def _project(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["project"], ["projects.name"], name=f"fk_{table}_project", ondelete="CASCADE")


def upgrade() -> None:
    """Columns are added one by one: rebuilding a table would forget AUTOINCREMENT."""
    for name in ("full_name", "email", "password"):
        op.add_column("users", _empty(name))
    op.add_column("users", sa.Column("enabled", sa.Boolean(), server_default=sa.true(), nullable=False))
    op.add_column("projects", _empty("description"))
    op.add_column("events", _empty("address"))
    op.create_index("ix_events_project", "events", ["project"])
    op.add_column("operations", _empty("project"))
    op.create_index("ix_operations_project", "operations", ["project"])
    op.execute("UPDATE operations SET project = 'default' WHERE slice_name != ''")
    _tokens()
    _credentials()
    _projects()
    _requests()


def _tokens() -> None:
    op.add_column("tokens", _empty("id"))
    op.add_column("tokens", sa.Column("scope", sa.Text(), server_default=sa.text("'write'"), nullable=False))
    op.add_column("tokens", _time("expires_at", nullable=True))
    op.add_column("tokens", _time("used_at", nullable=True))
    op.add_column("tokens", _empty("used_from"))
    op.execute("UPDATE tokens SET id = substr(hash, 1, 16)")
    op.create_index("ix_tokens_id", "tokens", ["id"], unique=True)


def _credentials() -> None:
    op.create_table(
        "sessions",
        *(_text("hash"), _text("id"), _text("user")),
        *(_time("created_at"), _time("expires_at"), _time("used_at")),
        *(_empty("address"), _empty("agent")),
        _user("sessions"),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
        sa.UniqueConstraint("id", name="uq_sessions_id"),
    )
    op.create_index("ix_sessions_user", "sessions", ["user"])
    op.create_table(
        "invitations",
        *(_text("user"), _text("hash"), _text("invited_by"), _time("created_at"), _time("expires_at")),
        _user("invitations"),
        sa.PrimaryKeyConstraint("user", name="pk_invitations"),
        sa.UniqueConstraint("hash", name="uq_invitations_hash"),
    )
    op.create_table(
        "ssh_keys",
        *(_text("user"), _text("id"), _text("line"), _time("created_at")),
        _user("ssh_keys"),
        sa.PrimaryKeyConstraint("user", "id", name="pk_ssh_keys"),
    )


def _projects() -> None:
    op.create_table(
        "members",
        *(_text("project"), _text("user"), _text("role"), _time("created_at")),
        _project("members"),
        _user("members"),
        sa.PrimaryKeyConstraint("project", "user", name="pk_members"),
    )
    op.create_index("ix_members_user", "members", ["user"])
    op.create_table(
        "quotas",
        *(_text("project"), _text("level")),
        *(sa.Column(name, sa.BigInteger()) for name in ("slices", "slivers")),
        sa.Column("vcpus", sa.Float()),
        *(sa.Column(name, sa.BigInteger()) for name in ("memory", "disk", "ports", "lease")),
        _project("quotas"),
        sa.PrimaryKeyConstraint("project", "level", name="pk_quotas"),
    )


def _requests() -> None:
    op.create_table(
        "requests",
        *(_text("id"), _text("project"), _text("user"), _text("name")),
        sa.Column("body", sa.JSON(), nullable=False),
        *(_text("reason"), _empty("exceeds"), _text("state"), _time("created_at"), _time("decided_at", nullable=True)),
        *(_empty("decided_by"), _empty("answer"), _empty("operation")),
        _project("requests"),
        _user("requests"),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_state", "requests", ["state"])
    op.create_index("ix_requests_user", "requests", ["user"])
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_requests_waiting",
        "requests",
        ["project", "name"],
        unique=True,
        sqlite_where=waiting,
        postgresql_where=waiting,
    )


def downgrade() -> None:
    for name in ("requests", "quotas", "members", "ssh_keys", "invitations", "sessions"):
        op.drop_table(name)
    op.drop_index("ix_tokens_id", table_name="tokens")
    for name in ("used_from", "used_at", "expires_at", "scope", "id"):
        op.drop_column("tokens", name)
    op.drop_index("ix_operations_project", table_name="operations")
    op.drop_column("operations", "project")
    op.drop_index("ix_events_project", table_name="events")
    op.drop_column("events", "address")
    op.drop_column("projects", "description")
    for name in ("password", "enabled", "email", "full_name"):
        op.drop_column("users", name)

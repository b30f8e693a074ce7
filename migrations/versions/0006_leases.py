"""leases by project, reminders, mail, a clock that is compared with uptime, ssh keys that change"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _empty(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def upgrade() -> None:
    """Columns are added one by one: rebuilding a table would forget AUTOINCREMENT."""
    op.add_column("slices", sa.Column("renewed_at", sa.DateTime()))
    op.add_column("slices", sa.Column("reminded", sa.BigInteger()))
    op.add_column("slices", _empty("lease_notice"))
    op.add_column("slices", sa.Column("named_keys", sa.JSON(), server_default=sa.text("'[]'"), nullable=False))
    op.execute("UPDATE slices SET named_keys = ssh_keys")
    op.add_column("slivers", _empty("keys_missing"))
    op.drop_column("clock", "trusted_from")
    op.add_column("clock", sa.Column("doubt", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("clock", _empty("boot"))
    op.add_column("clock", sa.Column("uptime", sa.Float(), server_default=sa.text("0"), nullable=False))
    op.create_table(
        "lease_rules",
        *_text("project"),
        sa.Column("default", sa.BigInteger()),
        sa.Column("window", sa.BigInteger()),
        sa.Column("reminders", sa.JSON()),
        sa.Column("exempt", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_lease_rules_project", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("project", name="pk_lease_rules"),
    )
    op.create_table(
        "mails",
        *_text("key", "user", "recipient"),
        *(_empty("slice"), _empty("project")),
        *_text("subject", "body", "state"),
        sa.Column("tries", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("next_at", sa.DateTime(), nullable=False),
        _empty("error"),
        sa.PrimaryKeyConstraint("key", name="pk_mails"),
    )
    op.create_index("ix_mails_state", "mails", ["state"])


def downgrade() -> None:
    op.drop_table("mails")
    op.drop_table("lease_rules")
    for name in ("uptime", "boot", "doubt"):
        op.drop_column("clock", name)
    op.add_column(
        "clock",
        sa.Column("trusted_from", sa.DateTime(), server_default=sa.text("'2000-01-01 00:00:00'"), nullable=False),
    )
    op.drop_column("slivers", "keys_missing")
    for name in ("named_keys", "lease_notice", "reminded", "renewed_at"):
        op.drop_column("slices", name)

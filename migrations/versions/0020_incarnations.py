"""incarnations of a restored database, and what its agents report during the hold"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incarnations",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("backup_at", sa.DateTime(), nullable=False),
        sa.Column("began_at", sa.DateTime(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_incarnations")),
    )
    op.create_table(
        "host_reports",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("found", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_host_reports")),
    )
    op.create_table(
        "unclaimed",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("sliver", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=True),
        sa.Column("snapshots", sa.JSON(), nullable=False),
        sa.Column("released", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("node", "sliver", name=op.f("pk_unclaimed")),
    )


def downgrade() -> None:
    for table in ("unclaimed", "host_reports", "incarnations"):
        op.drop_table(table)

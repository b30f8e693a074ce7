"""consoles"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "consoles",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("sliver", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], name="fk_consoles_sliver", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name="fk_consoles_user", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name="pk_consoles"),
    )
    op.create_index("ix_consoles_sliver", "consoles", ["sliver"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_consoles_sliver", table_name="consoles")
    op.drop_table("consoles")

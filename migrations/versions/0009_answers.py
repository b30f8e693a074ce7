"""answers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name="fk_answers_user", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user", "key", name="pk_answers"),
    )
    op.create_index("ix_answers_created_at", "answers", ["created_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_answers_created_at", table_name="answers")
    op.drop_table("answers")

"""published experiments"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("public", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("published_at", sa.DateTime(), nullable=False),
        sa.Column("published_by", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
        sa.UniqueConstraint("sha256", name=op.f("uq_experiments_sha256")),
    )
    op.create_index("ix_experiments_published_at", "experiments", ["published_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_experiments_published_at", table_name="experiments")
    op.drop_table("experiments")

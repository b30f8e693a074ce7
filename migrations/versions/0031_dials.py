"""connections that the service asks nodes to open"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dials",
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("sliver", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_dials_node"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("secret", name=op.f("pk_dials")),
    )


def downgrade() -> None:
    op.drop_table("dials")

"""requests of nodes for new certificates"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "renewals",
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("identity", name=op.f("pk_renewals")),
    )


def downgrade() -> None:
    op.drop_table("renewals")

"""links that sign in once"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sign_in_links",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("user", name=op.f("pk_sign_in_links")),
        sa.UniqueConstraint("hash", name=op.f("uq_sign_in_links_hash")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_sign_in_links_user"), ondelete="CASCADE"),
    )


def downgrade() -> None:
    op.drop_table("sign_in_links")

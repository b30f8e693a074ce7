"""nodes that get all their rows again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("links") as links:
        links.add_column(sa.Column("resync_at", sa.DateTime()))


def downgrade() -> None:
    with op.batch_alter_table("links") as links:
        links.drop_column("resync_at")

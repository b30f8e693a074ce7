"""requests to resize a slice"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("slice", sa.Text(), nullable=True))


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM requests WHERE slice IS NOT NULL"))  # the earlier version would create slices
    op.drop_column("requests", "slice")

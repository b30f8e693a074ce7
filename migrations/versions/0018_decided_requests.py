"""what of a request was granted, and whether its user has read the decision"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("granted", sa.JSON(none_as_null=True)))
    op.add_column("requests", sa.Column("unread", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("requests", "unread")
    op.drop_column("requests", "granted")

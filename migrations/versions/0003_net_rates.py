"""network rates of slivers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slivers", sa.Column("net_in", sa.BigInteger(), nullable=True))
    op.add_column("slivers", sa.Column("net_out", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("slivers", "net_out")
    op.drop_column("slivers", "net_in")

"""network rates of slivers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slivers", sa.Column("net_in", sa.BigInteger(), nullable=True))
    op.add_column("slivers", sa.Column("net_out", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("slivers") as batch:
        batch.drop_column("net_out")
        batch.drop_column("net_in")

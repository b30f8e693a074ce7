"""the hardware of virtual machines"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("slices") as slices:
        slices.add_column(sa.Column("machine", sa.Text(), nullable=False, server_default=sa.text("'standard'")))


def downgrade() -> None:
    with op.batch_alter_table("slices") as slices:
        slices.drop_column("machine")

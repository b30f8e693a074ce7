"""nodes that are silent or lost, and what happens to slices on lost nodes"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("nodes") as nodes:
        nodes.add_column(sa.Column("silent_since", sa.DateTime()))
        nodes.add_column(sa.Column("lost", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("slices") as slices:
        slices.add_column(sa.Column("on_loss", sa.Text(), nullable=False, server_default=sa.text("'keep'")))


def downgrade() -> None:
    with op.batch_alter_table("slices") as slices:
        slices.drop_column("on_loss")
    with op.batch_alter_table("nodes") as nodes:
        nodes.drop_column("lost")
        nodes.drop_column("silent_since")

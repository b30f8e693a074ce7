"""kernel configs: the configuration of the kernel of an image"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kernel_configs",
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["image"], ["images.sha256"], name=op.f("fk_kernel_configs_image"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("image", name=op.f("pk_kernel_configs")),
    )


def downgrade() -> None:
    op.drop_table("kernel_configs")

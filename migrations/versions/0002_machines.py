"""virtual machines: how an image boots, what is asked of a machine, what is seen of it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Columns are added one by one: rebuilding a table would forget AUTOINCREMENT."""
    op.add_column("images", sa.Column("boot", sa.JSON(), server_default=sa.text("'{}'"), nullable=False))
    op.add_column("slices", sa.Column("boot", sa.Text(), server_default=sa.text("'loader'"), nullable=False))
    op.add_column("slices", sa.Column("user_data", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("slivers", sa.Column("io_rate", sa.BigInteger()))
    op.add_column("slivers", sa.Column("io_ops", sa.BigInteger()))
    op.add_column("slivers", sa.Column("acceleration", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("slivers", sa.Column("booted", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("slivers", sa.Column("guest_memory", sa.BigInteger()))


def downgrade() -> None:
    for name in ("guest_memory", "booted", "acceleration", "io_ops", "io_rate"):
        op.drop_column("slivers", name)
    op.drop_column("slices", "user_data")
    op.drop_column("slices", "boot")
    op.drop_column("images", "boot")

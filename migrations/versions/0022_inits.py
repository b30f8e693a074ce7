"""the init of lxc slivers, and which images have systemd"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slices", sa.Column("init", sa.Text(), server_default=sa.text("'minimal'"), nullable=False))
    op.add_column("images", sa.Column("systemd", sa.Boolean()))


def downgrade() -> None:
    op.drop_column("images", "systemd")
    op.drop_column("slices", "init")

"""memory started: with how much a virtual machine started, of which it can get back what it gave while it runs

Machines that run now have 0: they keep their memory until they start again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slivers", sa.Column("memory_started", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.execute("ALTER TABLE slivers DROP COLUMN memory_started")

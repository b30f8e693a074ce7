"""memory max: up to how much memory a virtual machine can get while it runs

Machines that exist get no more than they started with.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slivers", sa.Column("memory_max", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.execute("ALTER TABLE slivers DROP COLUMN memory_max")

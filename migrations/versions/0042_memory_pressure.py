"""memory pressure: for how long programs waited for memory

Samples that exist have 0.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("samples", "node_samples"):
        op.add_column(table, sa.Column("pressure", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in ("samples", "node_samples"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN pressure")

"""memory reclaim: what the node took of the memory of slivers, and what these read back

Samples that exist have 0 of both.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_NAMES = ("reclaimed", "reread")


def upgrade() -> None:
    for table in ("samples", "node_samples"):
        for name in _NAMES:
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table in ("samples", "node_samples"):
        for name in _NAMES:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {name}")

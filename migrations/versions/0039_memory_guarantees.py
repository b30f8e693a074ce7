"""memory guarantees: what a sliver is promised, its weight, and the quota of each project

Slivers that exist have no guarantee. A project may guarantee a quarter of the memory that its quota allows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, name, usual in (
        ("slivers", "memory_guarantee", "0"),
        ("slivers", "memory_weight", "100"),
        ("allocations", "memory_guarantee", "0"),
    ):
        op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default=usual))
    op.add_column("quotas", sa.Column("memory_guarantee", sa.BigInteger(), nullable=True))
    op.execute("UPDATE quotas SET memory_guarantee = memory / 4")


def downgrade() -> None:
    for table in ("quotas", "allocations", "slivers"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN memory_guarantee")
    op.execute("ALTER TABLE slivers DROP COLUMN memory_weight")

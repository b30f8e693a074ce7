"""memory of slivers by its two names, charged and working, and when a sliver's usage was sampled"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_RENAMED = (
    ("samples", "memory", "charged"),
    ("samples", "memory_peak", "charged_peak"),
    ("slivers", "usage_memory", "usage_working"),
)
_ADDED = ("usage_charged", "usage_at")


def upgrade() -> None:
    for table, before, after in _RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
    for name in _ADDED:
        op.add_column("slivers", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    for name in _ADDED:
        op.drop_column("slivers", name)
    for table, before, after in _RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {after} TO {before}")

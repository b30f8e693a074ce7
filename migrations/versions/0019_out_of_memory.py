"""processes of slivers that the kernel killed for lack of memory"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_TIMES = ("oom_at", "oom_event_at")


def upgrade() -> None:
    op.add_column("slivers", sa.Column("oom_kills", sa.BigInteger(), nullable=False, server_default="0"))
    for name in _TIMES:
        op.add_column("slivers", sa.Column(name, sa.DateTime()))


def downgrade() -> None:
    for name in (*_TIMES, "oom_kills"):
        op.drop_column("slivers", name)

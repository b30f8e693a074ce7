"""screens, and what asked for a console"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("consoles", sa.Column("credential", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("consoles", sa.Column("screen", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("consoles", "screen")
    op.drop_column("consoles", "credential")

"""browsers in which an account's user signed in before"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("known_browsers", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    with op.batch_alter_table("users") as users:
        users.add_column(column)


def downgrade() -> None:
    with op.batch_alter_table("users") as users:
        users.drop_column("known_browsers")

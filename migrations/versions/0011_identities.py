"""who an OpenID Connect issuer says somebody is"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("made", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("admin", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("used_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_identities_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_identities")),
        sa.UniqueConstraint("user", "issuer", name=op.f("uq_identities_user_issuer")),
    )


def downgrade() -> None:
    op.drop_table("identities")

"""the database of a node that has joined a testbed: the revision of its rows, and the updates for the centre"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("links") as links:
        links.add_column(sa.Column("mirror", sa.BigInteger(), server_default="0", nullable=False))
        links.add_column(sa.Column("applied", sa.BigInteger(), server_default="0", nullable=False))
        links.add_column(sa.Column("applied_after", sa.BigInteger(), server_default="0", nullable=False))
    op.create_table(
        "mirror",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("received", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mirror")),
    )
    op.create_table(
        "outbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_outbox")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_key", "outbox", ["key"])


def downgrade() -> None:
    op.drop_table("outbox")
    op.drop_table("mirror")
    with op.batch_alter_table("links") as links:
        links.drop_column("applied_after")
        links.drop_column("applied")
        links.drop_column("mirror")

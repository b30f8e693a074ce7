"""streams of the bases of images, and which files of an image a node has"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("images") as images:
        images.add_column(sa.Column("stream_sha256", sa.Text(), nullable=False, server_default=sa.text("''")))
        images.add_column(sa.Column("stream_size", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
        images.add_column(sa.Column("stream_version", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    with op.batch_alter_table("image_nodes") as nodes:
        nodes.add_column(sa.Column("disk", sa.Text(), nullable=False, server_default=sa.text("''")))
        nodes.add_column(sa.Column("base", sa.Text(), nullable=False, server_default=sa.text("''")))
        nodes.add_column(sa.Column("stream", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE image_nodes SET disk = state")
    op.execute("UPDATE image_nodes SET base = state WHERE base_size > 0")


def downgrade() -> None:
    with op.batch_alter_table("image_nodes") as nodes:
        nodes.drop_column("stream")
        nodes.drop_column("base")
        nodes.drop_column("disk")
    with op.batch_alter_table("images") as images:
        images.drop_column("stream_version")
        images.drop_column("stream_size")
        images.drop_column("stream_sha256")

"""what each node has of an image"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """An image that is ready is so on the nodes whose agents use the database itself: only those have images yet."""
    op.create_table(
        "image_nodes",
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("base_size", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["image"], ["images.sha256"], name=op.f("fk_image_nodes_image"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_image_nodes_node"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("image", "node", name=op.f("pk_image_nodes")),
    )
    op.create_index(op.f("ix_image_nodes_node"), "image_nodes", ["node"])
    op.execute(
        "INSERT INTO image_nodes (image, node, state, base_size, updated_at) "
        "SELECT images.sha256, nodes.name, 'ready', images.base_size, images.created_at FROM images, nodes "
        "WHERE images.state = 'ready' AND nodes.state = 'active' AND nodes.identity IS NULL"
    )


def downgrade() -> None:
    op.drop_table("image_nodes")

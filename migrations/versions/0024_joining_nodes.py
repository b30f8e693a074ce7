"""nodes that join: site, state and identity of a node, join tokens, and certificates"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_ADDED = ("drained", "identity", "state", "site")
_JOIN_TEXTS = ("request", "address", "serial")


def upgrade() -> None:
    with op.batch_alter_table("nodes") as nodes:
        nodes.alter_column("agent_seen_at", existing_type=sa.DateTime(), nullable=True)
        nodes.add_column(sa.Column("site", sa.Text(), server_default=sa.text("''"), nullable=False))
        nodes.add_column(sa.Column("state", sa.Text(), server_default=sa.text("'active'"), nullable=False))
        nodes.add_column(sa.Column("identity", sa.Text(), nullable=True))
        nodes.add_column(sa.Column("drained", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_index("ix_nodes_identity", "nodes", ["identity"], unique=True)
    op.create_table(
        "joins",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        *(sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False) for name in _JOIN_TEXTS),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_joins_node"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_joins")),
        sa.UniqueConstraint("hash", name=op.f("uq_joins_hash")),
    )
    op.create_table(
        "authorities",
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name=op.f("pk_authorities")),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.Column("revoked_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificates")),
    )
    op.create_index(op.f("ix_certificates_identity"), "certificates", ["identity"])


def downgrade() -> None:
    """A node without a running agent has no row in the earlier schema."""
    for table in ("certificates", "authorities", "joins"):
        op.drop_table(table)
    op.execute("DELETE FROM nodes WHERE agent_seen_at IS NULL")
    op.drop_index("ix_nodes_identity", "nodes")
    with op.batch_alter_table("nodes") as nodes:
        for name in _ADDED:
            nodes.drop_column(name)
        nodes.alter_column("agent_seen_at", existing_type=sa.DateTime(), nullable=False)

"""first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "about",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_about"),
    )
    op.create_table(
        "clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seen_at", sa.DateTime(), nullable=False),
        sa.Column("trusted_from", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_clock"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("slice", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_slice", "events", ["slice"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("agent_seen_at", sa.DateTime(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("next_address", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_port", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_uid", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("slice_id", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("slice_name", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("image", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("image_name", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("hint", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
    )
    op.create_index("ix_operations_created_at", "operations", ["created_at"], unique=False)
    op.create_index("ix_operations_slice_name", "operations", ["slice_name"], unique=False)
    op.create_index("ix_operations_state", "operations", ["state"], unique=False)
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "images",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("virtual_size", sa.BigInteger(), nullable=False),
        sa.Column("file_size", sa.BigInteger(), nullable=False),
        sa.Column("arch", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("os", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_images_project", ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("sha256", name="pk_images"),
        sa.UniqueConstraint("name", name="uq_images_name"),
    )
    op.create_table(
        "operation_slivers",
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("sliver", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation"], ["operations.id"], name="fk_operation_slivers_operation", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation", "sliver", name="pk_operation_slivers"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "operation_steps",
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("sliver", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["operation"], ["operations.id"], name="fk_operation_steps_operation", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation", "sliver", "name", name="pk_operation_steps"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name="fk_tokens_user", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name="pk_tokens"),
    )
    op.create_index("ix_tokens_user", "tokens", ["user"], unique=False)
    op.create_table(
        "slices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("ssh_keys", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.Column("lease_ended_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["image"], ["images.sha256"], name="fk_slices_image", ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["owner"], ["users.name"], name="fk_slices_owner", ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name="fk_slices_project", ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name="pk_slices"),
        sa.UniqueConstraint("project", "name", name="uq_slices_project_name"),
    )
    op.create_index("ix_slices_image", "slices", ["image"], unique=False)
    op.create_table(
        "slivers",
        sa.Column("serial", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("slice", sa.Text(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("uid_first", sa.BigInteger(), nullable=False),
        sa.Column("port_first", sa.BigInteger(), nullable=False),
        sa.Column("port_count", sa.BigInteger(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("disk", sa.BigInteger(), nullable=False),
        sa.Column("pids", sa.BigInteger(), nullable=False),
        sa.Column("cpu", sa.Float(), nullable=False),
        sa.Column("cpu_shares", sa.BigInteger(), nullable=False),
        sa.Column("memory_soft", sa.BigInteger(), nullable=True),
        sa.Column("io_weight", sa.BigInteger(), nullable=True),
        sa.Column("host_key", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("usage_memory", sa.BigInteger(), nullable=True),
        sa.Column("usage_disk", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_slivers_node", ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["slice"], ["slices.id"], name="fk_slivers_slice", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("serial", name="pk_slivers"),
        sa.UniqueConstraint("id", name="uq_slivers_id"),
        sa.UniqueConstraint("node", "address", name="uq_slivers_node_address"),
        sa.UniqueConstraint("node", "uid_first", name="uq_slivers_node_uid_first"),
        sa.UniqueConstraint("slice", "idx", name="uq_slivers_slice_idx"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ports",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sliver", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["sliver"], ["slivers.serial"], name="fk_ports_sliver", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node", "port", name="pk_ports"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_ports_sliver", "ports", ["sliver"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_ports_sliver", table_name="ports")
    op.drop_table("ports")
    op.drop_table("slivers")
    op.drop_index("ix_slices_image", table_name="slices")
    op.drop_table("slices")
    op.drop_index("ix_tokens_user", table_name="tokens")
    op.drop_table("tokens")
    op.drop_table("operation_steps")
    op.drop_table("operation_slivers")
    op.drop_table("images")
    op.drop_table("users")
    op.drop_table("projects")
    op.drop_index("ix_operations_state", table_name="operations")
    op.drop_index("ix_operations_slice_name", table_name="operations")
    op.drop_index("ix_operations_created_at", table_name="operations")
    op.drop_table("operations")
    op.drop_table("nodes")
    op.drop_index("ix_events_slice", table_name="events")
    op.drop_table("events")
    op.drop_table("clock")
    op.drop_table("about")

"""the parts of operations: what each node has to do"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_COPIED = "state, error, hint, result, started_at, finished_at"


def upgrade() -> None:
    """Each operation has one part, on its node."""
    op.create_table(
        "operation_parts",
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("hint", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["operation"], ["operations.id"], name=op.f("fk_operation_parts_operation"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation", "node", name=op.f("pk_operation_parts")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_operation_parts_state", "operation_parts", ["state", "node"])
    op.execute(f"INSERT INTO operation_parts (operation, node, {_COPIED}) SELECT id, node, {_COPIED} FROM operations")
    op.add_column("operation_slivers", sa.Column("node", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.execute(
        "UPDATE operation_slivers SET node = (SELECT node FROM operations WHERE id = operation_slivers.operation)"
    )


def downgrade() -> None:
    op.drop_column("operation_slivers", "node")
    op.drop_table("operation_parts")

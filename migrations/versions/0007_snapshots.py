"""snapshots of slices, clones of them, and what an image's files take"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)


def _empty(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), server_default=sa.text("''"), nullable=False)


def upgrade() -> None:
    """Columns are added one by one: rebuilding a table would forget AUTOINCREMENT."""
    for column in (_empty("origin"), _number("inherited"), _number("epoch")):
        op.add_column("slivers", column)
    op.add_column("images", _number("base_size"))
    op.create_table(
        "snapshots",
        *(_text("id"), _text("slice"), _text("name"), _text("user")),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["slice"], ["slices.id"], name="fk_snapshots_slice", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_snapshots"),
        sa.UniqueConstraint("slice", "name", name="uq_snapshots_slice_name"),
    )
    op.create_table(
        "sliver_snapshots",
        *(_text("snapshot"), _text("sliver")),
        sa.Column("made_at", sa.DateTime()),
        *(_number("size"), _empty("detail")),
        sa.ForeignKeyConstraint(
            ["snapshot"], ["snapshots.id"], name="fk_sliver_snapshots_snapshot", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], name="fk_sliver_snapshots_sliver", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("snapshot", "sliver", name="pk_sliver_snapshots"),
    )
    op.create_index("ix_sliver_snapshots_sliver", "sliver_snapshots", ["sliver"])


def downgrade() -> None:
    op.drop_table("sliver_snapshots")
    op.drop_table("snapshots")
    op.drop_column("images", "base_size")
    for name in ("epoch", "inherited", "origin"):
        op.drop_column("slivers", name)

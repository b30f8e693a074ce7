"""samples of slivers and nodes, and what projects used by month"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NET = ("net_in", "net_out", "net_in_packets", "net_out_packets")
_IO = ("io_read", "io_written", "io_reads", "io_writes")


def _key() -> Iterator[sa.Column[Any]]:
    yield sa.Column("node", sa.Text(), nullable=False)
    yield sa.Column("resolution", sa.Integer(), autoincrement=False, nullable=False)
    yield sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False)


def _some(*names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, sa.BigInteger(), nullable=True) for name in names)


def _amounts(*names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, sa.Float(), server_default=sa.text("0"), nullable=False) for name in names)


def _counts(*names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, sa.BigInteger(), server_default="0", nullable=False) for name in names)


def upgrade() -> None:
    op.create_table(
        "samples",
        *_key(),
        sa.Column("sliver", sa.BigInteger(), autoincrement=False, nullable=False),
        *_amounts("seconds", "running"),
        *_some("memory", "working", "guest", "swap", "memory_peak", "disk", "referenced", "pids", "connections"),
        *_amounts("cpu", "cpu_peak"),
        *_counts(*_NET, *_IO),
        sa.PrimaryKeyConstraint("node", "resolution", "at", "sliver", name="pk_samples"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "node_samples",
        *_key(),
        *_amounts("seconds"),
        *_some("memory", "memory_total", "swap", "swap_total", "memory_peak"),
        *_some("disk", "disk_total", "pids", "connections"),
        *_amounts("cpu", "cpu_peak", "load"),
        *_counts(*_NET, *_IO, "lxc", "kvm"),
        *_amounts("sample_seconds", "sample_cpu"),
        sa.PrimaryKeyConstraint("node", "resolution", "at", name="pk_node_samples"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "accounts",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("project", "month")),
        *_amounts("sliver_hours", "cpu_hours", "memory_gib_hours", "disk_gib_hours"),
        *_counts("net_in", "net_out", "io_read", "io_written"),
        sa.PrimaryKeyConstraint("project", "month", name="pk_accounts"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for name in ("accounts", "node_samples", "samples"):
        op.drop_table(name)

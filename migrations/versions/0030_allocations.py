"""counters of what the slivers of each node have been allocated"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_TOTALS = ("memory_total", "disk_total", "ports_total")


def upgrade() -> None:
    """The counters begin with the sums of the slivers, and with what the facts of the nodes say."""
    made = op.create_table(
        "allocations",
        sa.Column("node", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)
            for name in ("slivers", "memory", "disk", "ports")
        ),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in _TOTALS),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name=op.f("fk_allocations_node"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_allocations")),
    )
    op.execute(
        "INSERT INTO allocations (node, slivers, memory, disk, ports) "
        "SELECT nodes.name, count(slivers.serial), coalesce(sum(slivers.memory), 0), coalesce(sum(slivers.disk), 0), "
        "coalesce(sum(slivers.port_count), 0) FROM nodes LEFT JOIN slivers ON slivers.node = nodes.name "
        "GROUP BY nodes.name"
    )
    connection = op.get_bind()
    for name, text in connection.execute(sa.text("SELECT name, CAST(facts AS TEXT) FROM nodes")).all():
        totals = _announced(json.loads(text or "{}"))
        connection.execute(made.update().where(made.c.node == name).values(**totals))


def _announced(facts: dict[str, object]) -> dict[str, int | None]:
    """The agent announces these again at its next start; until then they order nodes for placement."""

    def number(name: str) -> int | None:
        value = facts.get(name)
        return int(value) if isinstance(value, int | float) and value > 0 else None

    first, last = number("ports_first"), number("ports_last")
    ports = last - first + 1 if first is not None and last is not None and first <= last else None
    return dict(zip(_TOTALS, (number("memory"), number("disk_total"), ports), strict=True))


def downgrade() -> None:
    op.drop_table("allocations")

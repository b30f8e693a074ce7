"""indexes for what is due, leases that end and history that is deleted, and for lists of slices"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_slices_expires_at", "slices", ["expires_at"])
    op.create_index("ix_slices_name_project", "slices", ["name", "project"])
    op.create_index("ix_slices_lease_ended_at", "slices", ["lease_ended_at"])
    op.create_index("ix_operations_finished_at", "operations", ["finished_at"])
    op.create_index("ix_events_at", "events", ["at"])


def downgrade() -> None:
    op.drop_index("ix_events_at", table_name="events")
    op.drop_index("ix_operations_finished_at", table_name="operations")
    op.drop_index("ix_slices_lease_ended_at", table_name="slices")
    op.drop_index("ix_slices_name_project", table_name="slices")
    op.drop_index("ix_slices_expires_at", table_name="slices")

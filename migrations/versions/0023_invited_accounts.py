"""links of invitations to projects that create an account"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("project_invitations", sa.Column("link", sa.Text(), nullable=True))
    op.create_index(op.f("ix_project_invitations_link"), "project_invitations", ["link"], unique=True)


def downgrade() -> None:
    op.drop_index(op.f("ix_project_invitations_link"), "project_invitations")
    op.drop_column("project_invitations", "link")

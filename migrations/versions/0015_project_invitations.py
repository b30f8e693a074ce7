"""invitations to projects, default projects, and which mail addresses somebody else than their user confirmed"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# The only project somebody is in is where what names no project went until now, and goes on to go.
_ONLY_PROJECT = """
UPDATE users SET default_project = (SELECT min(members.project) FROM members WHERE members."user" = users.name)
WHERE (SELECT count(*) FROM members WHERE members."user" = users.name) = 1
"""
# An issuer verified the address, or an admin gave it and the events since then know of no change by its user.
_CONFIRMED = """
UPDATE users SET email_confirmed = :yes WHERE email != '' AND (
  EXISTS (SELECT 1 FROM identities
          WHERE identities."user" = users.name AND lower(identities.email) = lower(users.email))
  OR (
    EXISTS (SELECT 1 FROM events WHERE events.action = 'user invite' AND events.detail = users.name)
    AND NOT EXISTS (SELECT 1 FROM events WHERE events.action = 'user change' AND events."user" = users.name
                    AND events.detail LIKE '%email %')
  )
)
"""


def upgrade() -> None:
    op.add_column("users", sa.Column("default_project", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("users", sa.Column("email_confirmed", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "project_invitations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("invitee", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("invited_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.Column("declined", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("notified_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project"], ["projects.name"], name=op.f("fk_project_invitations_project"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project_invitations")),
        sa.UniqueConstraint("project", "invitee", name=op.f("uq_project_invitations_project_invitee")),
    )
    op.create_index("ix_project_invitations_invitee", "project_invitations", ["invitee"], unique=False)
    op.execute(_ONLY_PROJECT)
    op.execute(sa.text(_CONFIRMED).bindparams(sa.bindparam("yes", True, sa.Boolean())))


def downgrade() -> None:
    op.drop_table("project_invitations")
    op.drop_column("users", "email_confirmed")
    op.drop_column("users", "default_project")

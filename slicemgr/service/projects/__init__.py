"""Use-cases of projects: quotas, members and invitations."""

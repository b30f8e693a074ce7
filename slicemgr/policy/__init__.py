"""Decisions without side effects: allocation, quotas, leases and access."""

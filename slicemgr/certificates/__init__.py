"""Certificates of a testbed with several nodes: its authority, and requests of nodes for certificates."""

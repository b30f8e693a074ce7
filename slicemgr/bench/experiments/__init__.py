"""The experiments and their steps."""

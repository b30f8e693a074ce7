"""Experiments: run through the API like any user's work, compared with a baseline of the same run."""

"""Decisions without side effects: what is given to whom, for how long, and who may."""

"""Measurements: facts of the node, resource use of slivers."""

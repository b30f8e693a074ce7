"""The part of a node that connects it to the centre of its testbed."""

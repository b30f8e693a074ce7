"""The centre of a testbed with several nodes."""

"""From one machine to many: a machine with SQLite becomes the centre of a testbed and its first node."""

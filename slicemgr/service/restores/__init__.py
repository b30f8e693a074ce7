"""The review of a restored database: what the nodes run, and which rows and hosts differ."""

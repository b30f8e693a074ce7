"""The node's agent: it makes the host match the rows, and records the host's state in the rows.

`scheduler` receives the work, `observe` reads the host, `plan` decides (pure), `apply` acts, and `journal` writes to
the store.
"""

"""The node's agent: it makes the host what the rows say, and the rows say what the host is.

`scheduler` takes the work, `observe` reads the host, `plan` decides (pure), `apply` acts;
`journal` writes to the store.
"""

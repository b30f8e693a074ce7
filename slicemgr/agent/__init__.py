"""The node's agent: it makes the host what the rows say, and the rows say what the host is.

`loop` takes the work, `observe` looks, `plan` decides (pure), `apply` does; `journal` writes back to the store.
"""

"""Use-cases of nodes and images, the history of operations, and the audits of nodes."""

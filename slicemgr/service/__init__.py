"""Use-cases: each is one transaction, after which the agent is woken."""

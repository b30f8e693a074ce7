"""Tasks that the agent runs at intervals; `runner` runs them."""

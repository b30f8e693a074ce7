"""What the agent does at intervals beside the work on slivers; `runner` runs it."""

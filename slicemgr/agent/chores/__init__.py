"""What the agent does at intervals, each in a thread of its own, beside the work on slivers."""

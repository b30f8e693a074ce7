"""What is measured: facts of the node, usage of slivers."""

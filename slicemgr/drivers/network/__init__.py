"""The network of slivers on the node: packet filter, connection tracking, neighbours and rates."""

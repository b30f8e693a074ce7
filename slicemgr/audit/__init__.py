"""`slicectl audit`: what a tenant could do to the node and to others, tried inside slivers of its own and by REST."""

"""`slicectl audit`: what a tenant could do to the node and to others, tried from inside throw-away slivers and by REST."""

"""`slicectl audit`: attacks of a tenant on the node and on other tenants, from inside its slivers and over REST."""

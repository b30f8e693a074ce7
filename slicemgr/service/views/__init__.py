"""What pages, routes and metrics show. Reads only."""

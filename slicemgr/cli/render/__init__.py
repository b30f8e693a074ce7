"""How slicectl shows values: tables, JSON, progress and errors."""

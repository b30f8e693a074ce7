"""Reports of experiments: statistics, tables, plots and comparison."""

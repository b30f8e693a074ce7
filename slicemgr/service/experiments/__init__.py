"""Published experiments and the files of their reports."""

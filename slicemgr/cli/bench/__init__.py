"""`slicectl bench`: the options of each experiment, and its progress on a terminal."""

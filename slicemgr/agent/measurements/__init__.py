"""What experiments ask of the node itself: loads, raw slivers without slicemgr, the fill of kernel tables."""

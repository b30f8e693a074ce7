"""What experiments measure on the node itself: loads, raw slivers without slicemgr, the fill of kernel tables."""

"""Measurements of experiments on the node itself: loads, raw slivers without slicemgr, and use of kernel tables."""

"""Use-cases of slices: create, change, requests, snapshots, consoles and the keys that log in."""

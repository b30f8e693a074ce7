"""Programs of experiments: sent as text to a Python in a sliver, or run by the node's own.

Each imports nothing but Python's own library, works from 3.9 on, and prints one JSON object in its last line: what it
measured, or `missing` (what is not there, with `adds`, the command that adds it), or `failed`.
"""

"""Programs of experiments, which run in slivers (sent as text to their Python) or on the node.

Each imports only Python's standard library, works with Python 3.9 or newer, and prints one JSON object as its last
line: its results, or `missing` (what it requires, with `adds`, the command that installs it), or `failed`.
"""

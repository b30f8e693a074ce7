"""The shapes of measurements on a node for the OpenAPI description."""

from __future__ import annotations

from slicemgr.policy import measurements

_SEED = {"type": "integer", "minimum": 0, "maximum": measurements.MOST_SEED, "default": 1}
IO_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["root", "image", "what", "size"],
    "properties": {
        "root": {"type": "string", "enum": list(measurements.ROOTS)},
        "image": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "sha256"},
        "what": {"type": "string", "enum": list(measurements.LOADS)},
        "size": {"type": "integer", "minimum": 1, "description": "bytes of the database, or number of files"},
        "seed": _SEED,
    },
}
SYSBENCH_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["test"],
    "properties": {
        "test": {"type": "string", "enum": list(measurements.TESTS)},
        "seconds": {
            "type": "integer",
            "minimum": 0,
            "maximum": measurements.LONGEST,
            "default": 0,
            "description": "0: as long as in the table that is followed",
        },
        "size": {
            "type": "integer",
            "minimum": measurements.LEAST_FILES,
            "maximum": measurements.MOST_FILES,
            "default": 1 << 30,
            "description": "bytes of the files of `fileio`",
        },
        "seed": _SEED,
    },
}
_SECONDS = {"type": "integer", "minimum": 0, "maximum": measurements.LONGEST, "default": 0}
MEMORY_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["bytes"],
    "properties": {
        "bytes": {"type": "integer", "minimum": 0, "maximum": measurements.MOST_HELD, "description": "to hold"},
        "before": {**_SECONDS, "description": "seconds before they are held"},
        "hold": {**_SECONDS, "description": "seconds for which they are held"},
        "after": {**_SECONDS, "description": "seconds after that"},
        "controller": {
            "type": "string",
            "enum": ["", *measurements.CONTROLLERS],
            "default": "",
            "description": "what the memory controller does meanwhile; empty: as the node is set",
        },
        "locked": {"type": "boolean", "default": False, "description": "whether they cannot be moved to swap"},
        "swap": {
            "type": "boolean",
            "default": False,
            "description": "whether the kernel may move memory of slivers to swap by itself meanwhile",
        },
    },
}

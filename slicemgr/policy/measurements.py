"""Parameters of experiments on a node, validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicemgr.errors import invalid
from slicemgr.model import MIB

ROOTS = ("snapshot", "overlay", "copy")
LOADS = {"sqlite": (64 * 1024, 1 << 32), "files": (1, 1_000_000)}  # bytes of the database, number of files
TESTS = ("cpu", "threads", "memory", "fileio")
LEAST_FILES, MOST_FILES = 16 * MIB, 1 << 36  # bytes of sysbench's
LONGEST = 600
MOST_HELD = 1 << 44  # bytes
CONTROLLERS = ("on", "observe", "off")
MOST_SEED = 2**31 - 1


def io(raw: Mapping[str, Any]) -> dict[str, Any]:
    """root, image (sha256), what, size (bytes of the database or number of files), seed."""
    what = _one_of("what", raw.get("what"), tuple(LOADS))
    return {
        "root": _one_of("root", raw.get("root"), ROOTS),
        "image": _image(raw.get("image")),
        "what": what,
        "size": _whole("size", raw.get("size"), *LOADS[what]),
        "seed": _whole("seed", raw.get("seed", 1), 0, MOST_SEED),
    }


def sysbench(raw: Mapping[str, Any]) -> dict[str, Any]:
    """test, seconds (0: as the table has it), size (bytes of the files of `fileio`), seed."""
    return {
        "test": _one_of("test", raw.get("test"), TESTS),
        "seconds": _whole("seconds", raw.get("seconds", 0), 0, LONGEST),
        "size": _whole("size", raw.get("size", 1 << 30), LEAST_FILES, MOST_FILES),
        "seed": _whole("seed", raw.get("seed", 1), 0, MOST_SEED),
    }


def memory(raw: Mapping[str, Any]) -> dict[str, Any]:
    """bytes (held on the node), before, hold, after (seconds), controller ("": as the node is set), locked (whether
    the bytes cannot be moved to swap), swap (whether the kernel may move memory of slivers there by itself).
    """
    controller = raw.get("controller", "")
    return {
        "bytes": _whole("bytes", raw.get("bytes"), 0, MOST_HELD),
        **{name: _whole(name, raw.get(name, 0), 0, LONGEST) for name in ("before", "hold", "after")},
        "controller": controller if controller == "" else _one_of("controller", controller, CONTROLLERS),
        **{name: _truth(name, raw.get(name, False)) for name in ("locked", "swap")},
    }


def _one_of(field: str, value: Any, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise invalid(field, "is missing" if value is None else f"{str(value)[:40]!r} is unknown", ", ".join(known))
    return value


def _whole(field: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        problem = "is missing" if value is None else f"{str(value)[:40]!r} is not a whole number"
        raise invalid(field, problem, f"{least} to {most}")
    if not least <= value <= most:
        raise invalid(field, f"{str(value)[:40]} is out of range", f"{least} to {most}")
    return value


def _truth(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(field, f"{str(value)[:40]!r} is neither true nor false", "true or false")
    return value


def _image(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise invalid("image", "is missing" if value is None else "is not a sha256", "64 hexadecimal digits")
    return value

"""Run one test of sysbench 1.0 with the options of the table in "Create Simple Container", and print the results.

    sysbench.py cpu|threads|memory|fileio SECONDS BYTES SEED

It works in the current directory. SECONDS 0 selects the duration of that table. BYTES: of the files of `fileio`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

ADDS = "apt-get update && apt-get install -y sysbench"
WORDS = {
    "cpu": ["--cpu-max-prime=20000"],
    "threads": ["--thread-locks=1"],
    "memory": ["--threads=4"],
    "fileio": ["--threads=16", "--file-test-mode=rndrw"],
}
SECONDS = {"cpu": 10, "threads": 20, "memory": 20, "fileio": 10}  # the table's, or sysbench's defaults
_GENERAL = {"seconds": r"total time:\s+([0-9.]+)s", "events": r"total number of events:\s+([0-9]+)"}
LINES = {
    "cpu": {**_GENERAL, "events_per_second": r"events per second:\s+([0-9.]+)"},
    "threads": _GENERAL,
    "memory": {
        **_GENERAL,
        "operations": r"Total operations:\s+([0-9]+)",
        "mib_per_second": r"transferred \(([0-9.]+) MiB/sec\)",
    },
    "fileio": {**_GENERAL, "read": r"read, MiB/s:\s+([0-9.]+)", "written": r"written, MiB/s:\s+([0-9.]+)"},
}
_FAREWELL = 600  # seconds in addition to the test, for preparation and cleanup
Found = dict[str, object]


def parse(test: str, said: str) -> dict[str, float]:
    """The results in sysbench's output. Raises ValueError if one is missing."""
    found = {}
    for name, line in LINES[test].items():
        match = re.search(line, said)
        if match is None:
            raise ValueError(f"sysbench {test} printed no {name}")
        found[name] = float(match[1])
    return found


def words(test: str, seconds: int, size: int, seed: int) -> list[str]:
    """The command line of a test, without the program and the action."""
    files = [f"--file-total-size={size}"] if test == "fileio" else []
    return [test, *WORDS[test], *files, f"--time={seconds or SECONDS[test]}", f"--rand-seed={seed}"]


def run(test: str, seconds: int, size: int, seed: int) -> Found:
    """Run a test; its results, or `missing` or `failed`."""
    program = shutil.which("sysbench")
    if program is None:
        return {"missing": "sysbench is not installed", "adds": ADDS}

    def call(*arguments: str) -> str:
        limit = (seconds or SECONDS[test]) + _FAREWELL
        return subprocess.run(
            [str(program), *arguments], capture_output=True, check=True, text=True, timeout=limit
        ).stdout

    try:
        version = call("--version").split()[-1]
        if version.startswith("0."):
            return {"missing": f"sysbench is of version {version}, whose numbers mean something else than those of 1.0"}
        return {"version": version, **_measure(test, words(test, seconds, size, seed), call)}
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()
        what = next((line for line in said if "FATAL" in line), said[-1] if said else "it printed nothing")
        return {"missing": "its disk is full"} if "No space" in what else {"failed": f"sysbench {test}: {what[:300]}"}
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        return {"failed": f"sysbench {test}: {error}"}


def _measure(test: str, arguments: list[str], call: Callable[..., str]) -> dict[str, float]:
    if test != "fileio":
        return parse(test, call(*arguments, "run"))
    try:
        call(*arguments, "prepare")
        return parse(test, call(*arguments, "run"))
    finally:
        call(*arguments, "cleanup")


if __name__ == "__main__":
    _test, _seconds, _bytes, _seed = sys.argv[1:]
    sys.stdout.write(json.dumps(run(_test, int(_seconds), int(_bytes), int(_seed))) + "\n")

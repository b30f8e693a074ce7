#!/usr/bin/env python3
"""The whole suite in two processes: the tests that share one node, and beside them all others.

The first one's output is seen as it comes, the other's at its end; both go on whatever the other finds. Words are
passed on to both: `tools/suite.py --durations=20`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit status if nothing was selected


def words(part: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--part", part, "-p", "no:cacheprovider", "tests", *sys.argv[1:]]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Interrupted or not, it gets the time to take its boxes away."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def main() -> int:
    log = REPO / ".run" / "rest.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    with log.open("w") as out:
        beside = subprocess.Popen(words("rest"), cwd=REPO, stdout=out, stderr=subprocess.STDOUT, text=True)
        with ended(beside):
            first = subprocess.run(words("node"), cwd=REPO).returncode
            second = beside.wait()
    print(log.read_text(), flush=True)
    return max(0 if status == NO_TESTS else status for status in (first, second))


if __name__ == "__main__":
    sys.exit(main())

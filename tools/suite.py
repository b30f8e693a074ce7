#!/usr/bin/env python3
"""The whole suite in several processes, two at a time: a long part beside another, then what is left of them.

The output of the first part is seen as it comes, that of the others at the end; all go on whatever one of them finds.
Words are passed on to each: `tools/suite.py --durations=20`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from demo import REPO, RUN

PURE = ("tests/unit", "tests/golden")
UNITS = 3  # parts of what needs no node: the process that is first done takes the next
PARTS = {
    **{part: ("tests", *(f"--ignore={one}" for one in PURE)) for part in ("node", "rest")},
    **{f"unit-{number}": PURE for number in range(UNITS)},
}
NO_TESTS = 5  # pytest's exit status if nothing was selected
INTERRUPTED = 130


def run(part: str, where: tuple[str, ...], stop: threading.Event) -> int:
    """The exit status. The first part has the terminal."""
    if stop.is_set():
        return INTERRUPTED
    words = [sys.executable, "-m", "pytest", "--part", part, "-p", "no:cacheprovider", *where, *sys.argv[1:]]
    # A directory that only this part's pytest has: it closes the one it has to everybody else.
    with ExitStack() as stack:
        own = {**os.environ, "PYTEST_DEBUG_TEMPROOT": stack.enter_context(TemporaryDirectory(prefix="sm-"))}
        out = None if part == next(iter(PARTS)) else stack.enter_context((RUN / f"{part}.log").open("w"))
        both = None if out is None else subprocess.STDOUT
        status = subprocess.run(words, cwd=REPO, env=own, stdout=out, stderr=both, check=False).returncode
    return 0 if status == NO_TESTS else abs(status)


def main() -> int:
    # Ctrl-C is pytest's to answer, which takes its boxes away. A handler: what is ignored here is ignored there, too.
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    RUN.mkdir(mode=0o700, exist_ok=True)
    for part in PARTS:
        (RUN / f"{part}.log").unlink(missing_ok=True)
    shutil.rmtree(RUN / "bases", ignore_errors=True)  # of the run before: what this one's nodes share, it has imported
    with ThreadPoolExecutor(2) as two:
        statuses = list(two.map(lambda part: run(part, PARTS[part], stop), PARTS))
    for log in (RUN / f"{part}.log" for part in PARTS):
        if log.exists():
            print(log.read_text(), flush=True)
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())

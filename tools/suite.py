#!/usr/bin/env python3
"""The whole suite in two processes: the tests that share one node, and beside them all others.

The first one's output is seen as it comes, the other's at its end; both go on whatever the other finds. Words are
passed on to both: `tools/suite.py --durations=20`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import IO

from demo import REPO, RUN

NO_TESTS = 5  # pytest's exit status if nothing was selected


def start(part: str, temporary: str, out: IO[str] | None = None) -> subprocess.Popen[bytes]:
    """temporary: a directory that only this half's pytest has; it closes the one it has to everybody else."""
    words = [sys.executable, "-m", "pytest", "--part", part, "-p", "no:cacheprovider", "tests", *sys.argv[1:]]
    own = {**os.environ, "PYTEST_DEBUG_TEMPROOT": temporary}
    return subprocess.Popen(words, cwd=REPO, env=own, stdout=out, stderr=None if out is None else subprocess.STDOUT)


def main() -> int:
    # Ctrl-C is pytest's to answer, which takes its boxes away. A handler: what is ignored here is ignored there, too.
    signal.signal(signal.SIGINT, lambda *_: None)
    RUN.mkdir(mode=0o700, exist_ok=True)
    shutil.rmtree(RUN / "bases", ignore_errors=True)  # of the run before: what this one's nodes share, it has imported
    log = RUN / "rest.log"
    with log.open("w") as out, TemporaryDirectory(prefix="sm-") as first, TemporaryDirectory(prefix="sm-") as second:
        both = (start("node", first), start("rest", second, out))
        statuses = [one.wait() for one in both]
    print(log.read_text(), flush=True)
    return max(0 if status == NO_TESTS else abs(status) for status in statuses)


if __name__ == "__main__":
    sys.exit(main())

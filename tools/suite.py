#!/usr/bin/env python3
"""Run the test suite in parallel processes: the unit tests use the time in which the parts with nodes wait.

Two parts have a node each and share the tests that need one: each takes the next file that the other has not taken, so
both end at about the same time. The unit tests have a lower priority, because the parts with nodes take the longest.

`tools/suite.py` runs all tests except those marked `long`, `tools/suite.py --all` runs all tests. The output of the
first part is shown at once, that of the others at the end. A failure in one part does not stop the others. At the end,
a table of the parts and the failed tests are printed. Other arguments are passed to each pytest: `tools/suite.py --all
-k snapshots`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from demo import REPO, RUN

PURE = ("tests/unit", "tests/golden")
UNITS = 2  # parts of the tests that need no node
NODES = ("node-0", "node-1")  # parts that share files: see tests/conftest.py
NICENESS = 5  # of the unit tests
MEMORY = Path("/dev/shm")
ROOM = 2 << 30  # bytes there that are enough for both parts of the unit tests
PARTS = {
    **{part: ("tests", *(f"--ignore={one}" for one in PURE)) for part in (*NODES, "spare", "rest")},
    **{f"unit-{number}": PURE for number in range(UNITS)},
}
SLOWEST = 15  # number of slowest tests that each part lists at its end
WIDEST = 160  # characters of the message of a failed test
PATIENCE = 600  # seconds after which a test without a node counts as hung
NOT_LONG = "not long"
NO_TESTS = 5  # pytest's exit status if nothing was selected


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a part. wall, cpu: seconds; cpu is that of awaited processes, which daemons are not."""

    status: int
    wall: float = 0
    cpu: float = 0


def run(part: str, more: Sequence[str], taken: str) -> Result:
    """Run one part. The first part uses the terminal. taken: the folder of `take`."""
    unit = part.startswith("unit")
    words = ["nice", f"-n{NICENESS}"] if unit else []
    words += [sys.executable, "-m", "pytest", "--part", part, "-p", "no:cacheprovider", f"--durations={SLOWEST}"]
    words += [f"--junitxml={_junit(part)}", *([f"--taken={taken}"] if part in NODES else []), *more]
    if unit:
        # The databases of thousands of tests fill the memory.
        words += [f"--timeout={PATIENCE}", "-o", "tmp_path_retention_policy=failed"]
    begun = time.monotonic()
    # A directory for this part only, because pytest makes its directory inaccessible to other users.
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="sm-", dir=memory() if unit else None))
        own = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder}
        out = None if part == next(iter(PARTS)) else stack.enter_context((RUN / f"{part}.log").open("w"))
        both = None if out is None else subprocess.STDOUT
        process = subprocess.Popen(words, cwd=REPO, env=own, stdout=out, stderr=both)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    status = 0 if process.returncode == NO_TESTS else abs(process.returncode)
    return Result(status, time.monotonic() - begun, used.ru_utime + used.ru_stime)


def memory() -> Path:
    """Where unit tests write their many small databases: in memory, if there is room, otherwise in /tmp."""
    there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    return MEMORY if there else Path("/tmp")


def take(folder: Path, file: str, part: str) -> bool:
    """Whether a part runs the tests of a file, which the first caller does. folder: has a mark for each taken file."""
    mark = folder / file.replace("/", ".")
    try:
        with mark.open("x") as new:
            new.write(part)
    except FileExistsError:
        return mark.read_text() == part
    return True


def _junit(part: str) -> Path:
    return RUN / f"{part}.xml"


def counts(xml: str) -> dict[str, int]:
    """The numbers of tests, failed tests and skipped tests of a part, from the JUnit file of pytest."""
    found = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for one in ET.fromstring(xml).iter("testsuite"):
        for name in found:
            found[name] += int(one.get(name, 0))
    return found


def table(results: dict[str, Result]) -> str:
    """A table with a row for each part: its wall time, the CPU time of its processes, and its tests."""
    lines = [f"{'part':8} {'wall':>7} {'cpu':>7} {'tests':>6} {'failed':>6} {'skipped':>7}"]
    for part, result in results.items():
        file = _junit(part)
        found = counts(file.read_text()) if file.exists() else counts("<testsuites/>")
        failed = found["failures"] + found["errors"]
        numbers = f"{found['tests']:6} {failed:6} {found['skipped']:7}"
        lines.append(f"{part:8} {_minutes(result.wall)} {_minutes(result.cpu)} {numbers}")
    return "\n".join(lines)


def failures(xml: str) -> list[str]:
    """A line for each failed test of a part: its name, and the first line of its message."""
    found = []
    for case in ET.fromstring(xml).iter("testcase"):
        for one in (*case.iter("failure"), *case.iter("error")):
            first = (one.get("message") or "").partition("\n")[0][:WIDEST]
            found.append(f"{case.get('classname')}::{case.get('name')}: {first}")
    return found


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:4}:{int(seconds) % 60:02}"


def busy() -> float:
    """CPU seconds of the host since its boot, including daemons and emulated machines."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run_parts(more: Sequence[str], files: Sequence[str] = ()) -> int:
    """Run the suite, or some of its files. Returns the highest exit status of the parts."""
    # pytest handles Ctrl-C and removes its boxes. A handler, because child processes inherit an ignored signal.
    signal.signal(signal.SIGINT, lambda *_: None)
    RUN.mkdir(mode=0o700, exist_ok=True)
    for part in PARTS:
        for file in (RUN / f"{part}.log", _junit(part)):
            file.unlink(missing_ok=True)
    begun, worked = time.monotonic(), busy()
    with TemporaryDirectory(prefix="sm-") as taken, ThreadPoolExecutor(len(PARTS)) as pool:
        found = list(pool.map(lambda part: run(part, [*(files or PARTS[part]), *more], taken), PARTS))
    for log in (RUN / f"{part}.log" for part in PARTS):
        if log.exists():
            print(log.read_text(), flush=True)
    print(table(dict(zip(PARTS, found, strict=True))))
    for file in (file for file in map(_junit, PARTS) if file.exists()):
        for line in failures(file.read_text()):
            print(f"failed: {line}")
    wall, worked = time.monotonic() - begun, busy() - worked
    print(f"whole: {_minutes(wall).strip()} of wall time; the machine worked {_minutes(worked).strip()} of CPU time")
    return max(one.status for one in found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the suite.", epilog="Other words are passed on to pytest.")
    parser.add_argument("--all", action="store_true", help="the tests marked `long`, too")
    options, more = parser.parse_known_args()
    return run_parts(more if options.all else ["-m", NOT_LONG, *more])


if __name__ == "__main__":
    sys.exit(main())

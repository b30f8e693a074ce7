"""An experiment whose slices are files, for tests of the frame. As a program, it is run, killed and resumed.

`python fake_experiment.py FOLDER WORLD [--resume] [--keep] [--hang STEP] [--stop STEP] [--break STEP]`
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slicemgr.bench.frame import guard
from slicemgr.bench.frame import run as drive
from slicemgr.bench.frame.experiment import Json, Progress, Step, Stopped
from slicemgr.bench.frame.folder import Folder
from slicemgr.cli.bench.progress import progress_display
from slicemgr.errors import Failed

GIB = 1 << 30
ROOMY = guard.State(16 * GIB, 12 * GIB, 2 * GIB, 2 * GIB, 100 * GIB, 20 * GIB, 80 * GIB, 300, 32768, 0.5, 2)
PREFIX = "bench-fake-"


class Fake:
    """Creates a file for each step.

    hang: the step that waits after creating its file. full: the step before which the node has no free memory.
    """

    def __init__(
        self, world: Path, *, hang: str = "", stop: str = "", broken: str = "", full: str = "", turns: int = 1
    ) -> None:
        self.world = world
        self.hang, self.stop, self.broken, self.full = hang, stop, broken, full
        self.turns = turns
        self.ran: list[str] = []
        self.interrupted = threading.Event()

    def steps(self) -> list[Step]:
        found = []
        for turn in range(1, self.turns + 1):
            found += [Step(f"{turn}/{one}", f"step {one}", None, 1.0, str(turn)) for one in "abcd"]
            found.append(Step(f"{turn}/last", "last", None, 1.0, str(turn), always=True))
        return found

    def state(self) -> guard.State:
        return replace(ROOMY, memory_available=1 << 20) if self.full and self._next() == self.full else ROOMY

    def _next(self) -> str:
        known = [one.id for one in self.steps()]
        return known[known.index(self.ran[-1]) + 1] if self.ran else known[0]

    def need(self, step: Step) -> guard.Need:
        return guard.Need()

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        self.clean(progress)
        for one in done.values():
            self._make(one["data"]["slice"])
        return [f"resumed with {len(done)} steps"] if done else []

    def run(self, step: Step, progress: Progress) -> Json:
        self.ran.append(step.id)
        name = step.id.replace("/", "-")
        self._make(name)
        if step.id == self.hang:
            (self.world / "hangs").touch()
            time.sleep(60)
        if step.id == self.stop:
            raise Stopped("no more room", {"slice": name, "half": True})
        if step.id == self.broken:
            raise Failed("it broke", hint="mend it")
        return {"slice": name, "there": len(self.slices())}

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        """There is nothing to close."""

    def clean(self, progress: Progress) -> None:
        for one in self.slices():
            (self.world / one).unlink()

    def _make(self, name: str) -> None:
        (self.world / f"{PREFIX}{name}").touch()

    def slices(self) -> list[str]:
        return sorted(one.name for one in self.world.iterdir() if one.name.startswith(PREFIX))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("world", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--slow-clean", type=float, default=0)
    for name in ("hang", "stop", "break"):
        parser.add_argument(f"--{name}", default="", dest=name)
    wanted = parser.parse_args()
    fake = Fake(wanted.world, hang=wanted.hang, stop=wanted.stop, broken=getattr(wanted, "break"))
    if wanted.slow_clean:
        clean = fake.clean

        def slowly(progress: Progress) -> None:
            (wanted.world / "cleans").touch()
            time.sleep(wanted.slow_clean)
            clean(progress)

        fake.clean = slowly  # type: ignore[method-assign]
    with Folder.take(wanted.folder, "fake", {"size": 4}, resume=wanted.resume) as folder:
        try:
            with progress_display() as progress:
                print(drive.carry_out(fake, folder, progress, keep=wanted.keep))
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

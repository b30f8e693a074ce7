"""The progress of an experiment: a bar with the remaining time on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicemgr.cli.render.human import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from rich.progress import Progress, TaskID

    from slicemgr.bench.frame.experiment import Step

_AN_HOUR = 3600.0  # seconds of finished steps from which the remaining time is estimated


class Lines:
    """For a pipe or a log: a line on stderr at the end of each step, and for each message."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, steps: Sequence[Step], done: int) -> None:
        self._total, self._done = len(steps), done

    def step(self, step: Step) -> None:
        pass

    def inside(self, what: str, done: int, total: int) -> None:
        pass

    def finished(self, step: Step, seconds: float) -> None:
        self._done += 1
        self.say(f"{self._done}/{self._total} {step.title}: {seconds:.1f} s")

    def say(self, text: str) -> None:
        sys.stderr.write(f"slicectl: {printable(text)}\n")
        sys.stderr.flush()


class Bars:
    """For a terminal: all steps by their estimated duration, and the progress of the current one."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress: Progress = Progress(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            speed_estimate_period=_AN_HOUR,
        )
        self._all: TaskID = self._progress.add_task("all steps", total=None, amount="")
        self._one: TaskID = self._progress.add_task("", total=None, amount="")
        self._total = 0
        self._done = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, steps: Sequence[Step], done: int) -> None:
        self._total, self._done = len(steps), done
        left = sum(one.seconds for one in steps[done:])
        self._progress.reset(self._all, total=left, amount=f"{done}/{len(steps)}")

    def step(self, step: Step) -> None:
        self._progress.reset(self._one, total=None, description=printable(step.title), amount="")

    def inside(self, what: str, done: int, total: int) -> None:
        amount = f"{printable(what)} {done}/{total}"
        self._progress.update(self._one, completed=done, total=total, amount=amount)

    def finished(self, step: Step, seconds: float) -> None:
        self._done += 1
        self._progress.update(self._all, advance=step.seconds, amount=f"{self._done}/{self._total}")

    def say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)


def progress_display() -> Lines | Bars:
    """The display that suits stderr. Use it as a context."""
    return Bars() if sys.stderr.isatty() else Lines()

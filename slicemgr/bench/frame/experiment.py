"""What an experiment is to the frame: steps that are finished one by one, a node to look at, nothing left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from slicemgr.bench.frame import guard

Json = dict[str, Any]
Work = TypeVar("Work")


@dataclass(frozen=True)  # no slots: Python 3.11 cannot make a generic one of them by its alias
class StepOf(Generic[Work]):
    """id: unique, and the same whenever the same parameters are given; people and run folders know the step by it.

    work: what is to be done, as the experiment has it. seconds: a guess for the dry run. series: steps that build on
    each other; where one of them is stopped, the rest of its series is left out, but for those that say `always`, such
    as the deletion. deletes: what was made; the last of all steps is left out if it does and all shall be kept.
    """

    id: str
    title: str
    work: Work
    seconds: float = 1.0
    series: str = ""
    always: bool = False
    deletes: bool = False


Step = StepOf[Any]


class Stopped(Exception):
    """The node holds no more: reason, for people. data: what the step measured until then."""

    def __init__(self, reason: str, data: Json | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data or {}


class Missing(Exception):
    """A step cannot be measured here, whatever the node has left; all others go on. --resume tries it again.

    reason: for people, what is not there and what would add it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Progress(Protocol):
    """Receives the progress of a run, for people. None of its methods may raise."""

    def begin(self, steps: Sequence[Step], done: int) -> None:
        """Before the first step. done: how many steps an earlier run has finished."""

    def step(self, step: Step) -> None:
        """A step begins."""

    def inside(self, what: str, done: int, total: int) -> None:
        """Within the step; from any thread."""

    def finished(self, step: Step, seconds: float) -> None: ...

    def say(self, text: str) -> None: ...


class Experiment(Protocol):
    """One experiment with its parameters. What it makes carries the run's own prefix in its name."""

    def steps(self) -> Sequence[Step]: ...

    def state(self) -> guard.State | None:
        """What the node says of itself; None if there is nothing to guard. Raises SlicemgrError."""

    def need(self, step: Step) -> guard.Need:
        """What the step will take of the node."""

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> Sequence[str]:
        """Before the first of the steps that are missing; notes for the reader. Refused if it cannot be run.

        done: what was finished before, by the id of its step.
        """

    def run(self, step: Step, progress: Progress) -> Json:
        """Its measurements, as JSON.

        Raises Stopped where the node holds no more, Missing if it lacks what is to be measured, SlicemgrError if it
        broke.
        """

    def interrupt(self) -> None:
        """Threads of a step shall end: its results are not wanted any more."""

    def close(self) -> None:
        """Connections that it keeps; the last that is called."""

    def clean(self, progress: Progress) -> None:
        """Delete whatever carries the run's prefix, made by this process or an earlier one. Raises SlicemgrError."""

"""The interface of an experiment: its steps, the state of its node, and the deletion of what it created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from slicemgr.bench.frame import guard

Json = dict[str, Any]
Work = TypeVar("Work")


@dataclass(frozen=True)  # no slots: Python 3.11 cannot make a generic one of them by its alias
class StepOf(Generic[Work]):
    """A step of an experiment.

    id: unique, and the same for the same parameters; users and run folders identify the step by it. work: the
    experiment's own description of the step. seconds: the estimate for the dry run. series: the name of steps that
    build on each other; when one is stopped, the rest of its series is omitted, except steps with `always`, such as
    the deletion. deletes: the step deletes what was created; it is omitted if it is the last and all is to be kept.
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
    """The node has no capacity for more.

    reason: for the report and the terminal. data: what the step measured before.
    """

    def __init__(self, reason: str, data: Json | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data or {}


class Missing(Exception):
    """A step cannot be measured here, regardless of free resources. The others continue, and --resume repeats it.

    reason: for the report and the terminal: what is missing and what would add it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Progress(Protocol):
    """Receives the progress of a run and shows it to the user. None of its methods may raise."""

    def begin(self, steps: Sequence[Step], done: int) -> None:
        """Before the first step. done: how many steps an earlier run has finished."""

    def step(self, step: Step) -> None:
        """A step begins."""

    def inside(self, what: str, done: int, total: int) -> None:
        """Within a step, `done` of `total` are finished. Called from any thread."""

    def finished(self, step: Step, seconds: float) -> None: ...

    def say(self, text: str) -> None: ...


class Experiment(Protocol):
    """One experiment with its parameters. The names of all that it creates begin with the prefix of the run."""

    def steps(self) -> Sequence[Step]: ...

    def state(self) -> guard.State | None:
        """The state of the node; None if there is nothing to guard. Raises SlicemgrError."""

    def need(self, step: Step) -> guard.Need:
        """The resources of the node that the step is going to use."""

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> Sequence[str]:
        """Called before the first unfinished step. Returns notes for the report. Raises Refused if it cannot be run.

        done: the records of the finished steps, by the id of the step.
        """

    def run(self, step: Step, progress: Progress) -> Json:
        """The measurements of the step, as JSON.

        Raises Stopped if the node has no capacity for more, Missing if the node lacks what the step measures, and
        SlicemgrError if the step failed.
        """

    def interrupt(self) -> None:
        """End the threads of a step: its results are no longer needed."""

    def close(self) -> None:
        """Close the connections. This is the last method that is called."""

    def clean(self, progress: Progress) -> None:
        """Delete all slices with the prefix of the run, also those of an earlier process. Raises SlicemgrError."""

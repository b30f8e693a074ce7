"""Runs the unfinished steps of an experiment, with the guard before each, and deletes what they created."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import NamedTuple

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.experiment import Experiment, Json, Missing, Progress, Step, Stopped
from slicemgr.bench.frame.folder import Folder
from slicemgr.errors import SlicemgrError

DONE, STOPPED, INTERRUPTED, FAILED, RUNNING = "done", "stopped", "interrupted", "failed", "running"
_JUMP = 2.0  # seconds by which the wall clock may differ from the monotonic one within a step because it is slewed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Moment(NamedTuple):
    """The readings of both clocks, in seconds."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())


def jump(before: Moment, after: Moment) -> float:
    """Seconds by which the wall clock was set between two moments; 0 if it was not."""
    off = (after.wall - before.wall) - (after.monotonic - before.monotonic)
    return round(off, 3) if abs(off) > _JUMP else 0.0


class Interrupts:
    """The first signal raises KeyboardInterrupt. Later ones, during the deletion, only print that it takes a moment."""

    def __init__(self, progress: Progress, end: Callable[[], None]) -> None:
        self._progress = progress
        self._end = end
        self.deaf = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.deaf:
            self._progress.say("the slices of the run are being deleted; this takes a moment")
            return
        self.deaf = True
        self._end()
        raise KeyboardInterrupt


@contextmanager
def _interruptible(progress: Progress, end: Callable[[], None]) -> Iterator[Interrupts]:
    interrupts = Interrupts(progress, end)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts) for number in _SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def carry_out(
    experiment: Experiment,
    folder: Folder,
    progress: Progress,
    *,
    keep: bool = False,
    limits: guard.Limits | None = None,
) -> str:
    """Run the experiment. Returns DONE, or STOPPED by the guard or because the node had no capacity for more.

    keep: do not delete what was created. Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, a failed step raises its
    SlicemgrError. In each case the finished steps are in the folder, run.json has the outcome, and what was created is
    deleted.
    """
    outcome, reason, begun = FAILED, "", _now()
    with _interruptible(progress, experiment.interrupt) as interrupts:
        folder.note({"outcome": RUNNING, "started": folder.info.get("started") or begun})
        try:
            outcome, reason = _steps(experiment, folder, progress, limits or guard.Limits(), keep=keep)
        except KeyboardInterrupt:
            outcome, reason = INTERRUPTED, "it was ended by hand"
            raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            raise
        finally:
            interrupts.deaf = True
            try:
                if not keep:
                    experiment.clean(progress)
            except SlicemgrError as error:
                error.add_note(f"the names of the remaining slices begin with {folder.info.get('prefix')}")
                if reason:
                    error.add_note(f"before that: {reason}")
                raise
            finally:
                _end(folder, begun, outcome, reason)
    return outcome


def _steps(
    experiment: Experiment, folder: Folder, progress: Progress, limits: guard.Limits, *, keep: bool
) -> tuple[str, str]:
    steps = experiment.steps()
    steps = steps[:-1] if keep and steps and steps[-1].deletes else steps
    over = {one["series"]: str(one["stopped"]) for one in folder.steps.values() if one.get("stopped")}
    done = {name: one for name, one in folder.steps.items() if not one.get("missing")}
    todo = [one for one in steps if one.id not in done and (one.always or one.series not in over)]
    progress.begin(steps, len(steps) - len(todo))
    if not todo:
        return _outcome(over)
    notes = experiment.prepare(done, todo, progress)
    folder.note({"planned": len(steps), "notes": [*folder.info.get("notes", ()), *notes]})
    said: set[str] = set()
    for step in todo:
        if step.series in over and not step.always:
            continue
        reason, record = _step(experiment, step, progress, limits)
        if reason:
            over[step.series] = reason
            progress.say(f"stopped at {step.title}: {reason}")
        lacks = record.get("missing", "")
        if lacks and lacks not in said:
            said.add(lacks)
            progress.say(f"not measured: {step.title}: {lacks}")
        folder.finish(step.id, record)
        progress.finished(step, record["seconds"])
    return _outcome(over)


def _outcome(over: Mapping[str, str]) -> tuple[str, str]:
    """The outcome of the run and its reason. over: the reasons by the series that were stopped."""
    return (STOPPED, list(over.values())[-1]) if over else (DONE, "")


def _step(experiment: Experiment, step: Step, progress: Progress, limits: guard.Limits) -> tuple[str, Json]:
    """Run a step. Returns why it was stopped, or "", and its record. The guard ignores steps with `always`."""
    progress.step(step)
    now = None if step.always else experiment.state()
    reason = (guard.verdict(now, experiment.need(step), limits) or "") if now is not None else ""
    record: Json = {"title": step.title, "series": step.series, "began": _now(), "seconds": 0.0}
    if reason:
        return reason, {**record, "stopped": reason, "data": {}}
    begun = Moment.now()
    try:
        record["data"] = experiment.run(step, progress)
    except Stopped as stopped:
        reason = stopped.reason
        record.update(stopped=reason, data=stopped.data)
    except Missing as missing:
        record.update(missing=missing.reason, data={})
    ended = Moment.now()
    record["seconds"] = round(ended.monotonic - begun.monotonic, 4)
    if off := jump(begun, ended):
        record["clock_jump"] = off
        progress.say(f"the clock was set by {off:+g} s meanwhile; durations are not affected")
    return reason, record


def _end(folder: Folder, begun: str, outcome: str, reason: str) -> None:
    """Write the outcome into run.json. An experiment that was resumed has several turns."""
    turn = {"started": begun, "finished": _now(), "outcome": outcome, "reason": reason}
    turns = [*folder.info.get("turns", ()), turn]
    folder.note({"finished": turn["finished"], "outcome": outcome, "reason": reason, "turns": turns})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def estimate(steps: Sequence[Step]) -> float:
    """Estimated seconds of the steps."""
    return sum(one.seconds for one in steps)

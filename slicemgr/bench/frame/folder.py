"""The folder of a run: run.json describes the run and its node, steps.jsonl has a line for each finished step.

A step is finished only when its line is on the disk: after any end of the process, `--resume` runs the steps without
a line. data.csv, data.json and the reports are derived from these two files and can be generated again.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from slicemgr.errors import Code, Failed, Refused, invalid

FORMAT = 1
FIELD = "--output"
INFO, _STEPS = "run.json", "steps.jsonl"
_ROOM = 16 << 20  # bytes that the files of a run may need

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a run folder. steps: the records by the id of the step, in the order in which they finished."""

    folder: Path
    info: Json
    steps: Mapping[str, Json]


class Folder:
    """The folder of a run, locked and open for writing; no other process can open it for writing meanwhile."""

    def __init__(self, path: Path, info: Json, steps: dict[str, Json], descriptor: int) -> None:
        self.path = path
        self.info = info
        self.steps = steps
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @classmethod
    def take(cls, path: Path, experiment: str, parameters: Json, *, resume: bool = False) -> Folder:
        """Open a folder for a new run, which must be empty or missing; with `resume`, a folder with the same run.

        Raises Refused otherwise.
        """
        parameters = json.loads(json.dumps(parameters))
        found = look(path, experiment, parameters, resume=resume)
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise invalid(FIELD, f"{path}: {error.strerror}", "a folder that can be written to") from error
        try:
            _lock(descriptor, path)
            _check_room(path)
            if found is None:
                head = {"format": FORMAT, "experiment": experiment, "parameters": parameters, "outcome": "new"}
                found = Run(path, head, {})
            folder = cls(path, found.info, dict(found.steps), descriptor)
            folder.note({})
            _cut(path / _STEPS)
        except BaseException:
            os.close(descriptor)
            raise
        return folder

    def note(self, more: Mapping[str, Any]) -> None:
        """Add values to run.json atomically. Raises Failed if the disk is full."""
        info = {**self.info, **more}
        self.write(INFO, json.dumps(info, indent=2, allow_nan=False) + "\n")
        self.info = info

    def finish(self, step: str, record: Mapping[str, Any]) -> None:
        """Record a finished step; its line is on the disk when this returns. Raises Failed if the disk is full."""
        line = json.dumps({"step": step, **record}, allow_nan=False) + "\n"
        try:
            with (self.path / _STEPS).open("a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _full(self.path / _STEPS, error) from error
        self.steps[step] = json.loads(line)

    def write(self, name: str, text: str) -> None:
        """Write a file of the run atomically. Raises Failed."""
        write(self.path / name, text)

    def forget(self) -> None:
        """Remove run.json of a run that did nothing, and the folder if it is empty then."""
        with suppress(OSError):
            (self.path / INFO).unlink(missing_ok=True)
            self.path.rmdir()

    @property
    def run(self) -> Run:
        return Run(self.path, self.info, dict(self.steps))


def look(path: Path, experiment: str, parameters: Json, *, resume: bool) -> Run | None:
    """The run to resume; None for a new run. Changes nothing. Raises Refused if neither is possible.

    A run without a finished step is begun again even without `resume`.
    """
    if not path.exists() or (path.is_dir() and all(one.suffix == ".new" for one in path.iterdir())):
        if resume:
            raise Refused(Code.NOT_FOUND, f"{path} has no run to resume", hint="leave --resume out", field=FIELD)
        return None
    found = read(path)
    differs = _differs(found.info, experiment, parameters)
    if differs:
        hint = "the same parameters, or another folder"
        raise Refused(Code.CONFLICT, f"{path} is another run: {differs}", hint=hint, field=FIELD)
    if found.steps and not resume:
        message = f"{path} has this run already ({len(found.steps)} steps, {found.info.get('outcome')})"
        raise Refused(Code.CONFLICT, message, hint="--resume continues it; or name another folder", field=FIELD)
    return found


def read(path: Path, field: str = FIELD) -> Run:
    """Read the folder of a run; an incomplete last line is ignored. Raises Refused if it is not a run."""
    hint = "a folder that `slicectl bench` made"
    try:
        info = json.loads((path / INFO).read_text())
        lines = (path / _STEPS).read_bytes().split(b"\n") if (path / _STEPS).exists() else []
    except ValueError as error:
        raise invalid(field, f"{path / INFO} is damaged: {error}", hint) from error
    except OSError as error:
        raise invalid(field, f"{path} is not a run: {INFO}: {error.strerror}", hint) from error
    if not isinstance(info, dict) or info.get("format") != FORMAT or "experiment" not in info:
        raise invalid(field, f"{path} is not a run, or of another version", hint)
    steps: dict[str, Json] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            steps[record["step"]] = record
        except (ValueError, KeyError, TypeError) as error:
            message = f"{path / _STEPS} is damaged in line {number}"
            raise invalid(field, message, "remove that line: its step is measured again by --resume") from error
    return Run(path, info, steps)


def write(path: Path, text: str | bytes) -> None:
    """Write a file atomically, also with respect to a power failure. Raises Failed."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise _full(path, error) from error


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with a column for each name that any row has; empty where a row lacks it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    target = io.StringIO()
    writer = csv.DictWriter(target, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def _differs(info: Json, experiment: str, parameters: Json) -> str:
    """The first difference between a run and the requested one, as a sentence part; "" if there is none."""
    if info["experiment"] != experiment:
        return f"its experiment is {info['experiment']}, not {experiment}"
    known = info.get("parameters") or {}
    for name in dict.fromkeys([*known, *parameters]):
        if known.get(name) != parameters.get(name):
            return f"its {name} is {known.get(name)}, not {parameters.get(name)}"
    return ""


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        hint = "wait until it has ended, or name another folder"
        raise Refused(Code.CONFLICT, f"an experiment writes into {path}", hint=hint, field=FIELD) from None


def _check_room(path: Path) -> None:
    there = os.statvfs(path)
    free = there.f_bavail * there.f_frsize
    if free < _ROOM or (there.f_files and not there.f_favail):
        message = f"the disk of {path} is full: {free >> 20} MiB are free"
        raise invalid(FIELD, message, f"at least {_ROOM >> 20} MiB, or a folder on another disk")


def _cut(steps: Path) -> None:
    """Remove an incomplete last line, so that the next record begins on a line of its own."""
    if steps.exists():
        whole = steps.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            os.truncate(steps, end)


def _full(path: Path, error: OSError) -> Failed:
    hint = "free some space; finished steps are kept, and --resume continues the run"
    return Failed(f"cannot write {path}: {error.strerror}", hint=hint)

"""The folder of `slicectl bench all`: a folder for each experiment, and all.json with what was run and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slicemgr.bench.frame import folder as run_folder
from slicemgr.errors import Code, Refused, invalid

FORMAT = 1
LEFT_OUT, FAILED = "left out", "failed"  # outcomes beside those of a run, see `run.carry_out`
FILE = "all.json"
_HINT = "a folder that `slicectl bench all` made"


@dataclass(frozen=True, slots=True)
class Part:
    """An experiment of a collection.

    words: its options. outcome: "" before it has ended; reason: why it failed or was left out, "" otherwise.
    """

    name: str
    words: Sequence[str]
    outcome: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """The experiments in the order in which they run, each in `folder`/NAME."""

    folder: Path
    parts: Sequence[Part]

    def ended(self, name: str, outcome: str, reason: str = "") -> Collection:
        """The collection with the outcome of an experiment, which is also written. Raises Failed."""
        parts = [replace(one, outcome=outcome, reason=reason) if one.name == name else one for one in self.parts]
        changed = replace(self, parts=parts)
        changed.write()
        return changed

    def write(self) -> None:
        """Write all.json. Raises Failed."""
        parts = [
            {"experiment": one.name, "options": list(one.words), "outcome": one.outcome, "reason": one.reason}
            for one in self.parts
        ]
        text = json.dumps({"format": FORMAT, "experiments": parts}, indent=2) + "\n"
        run_folder.write(self.folder / FILE, text)

    @property
    def failed(self) -> list[str]:
        return [one.name for one in self.parts if one.outcome == FAILED]

    def runs(self) -> dict[str, run_folder.Run]:
        """The runs that have begun, by the names of the experiments. Raises Refused for a damaged one."""
        return {one.name: run_folder.read(self.folder / one.name) for one in self.parts if self.begun(one.name)}

    def begun(self, name: str) -> bool:
        """Whether the folder of the experiment has a run, which can be resumed."""
        return (self.folder / name / run_folder.INFO).exists()


def look(path: Path, parts: Sequence[Part], *, resume: bool) -> Collection:
    """The collection to resume, or a new one. Changes nothing. Raises Refused if neither is possible."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        if resume:
            message = f"{path} has no experiments to resume"
            raise Refused(Code.NOT_FOUND, message, hint="leave --resume out", field=run_folder.FIELD)
        return Collection(path, parts)
    found = read(path, run_folder.FIELD)
    if not resume:
        hint = "--resume continues them; or name another folder"
        raise Refused(Code.CONFLICT, f"{path} has experiments already", hint=hint, field=run_folder.FIELD)
    for old, new in zip(found.parts, parts, strict=False):
        if (old.name, list(old.words)) != (new.name, list(new.words)):
            message = f"{path} has `{' '.join((old.name, *old.words))}`, not `{' '.join((new.name, *new.words))}`"
            raise Refused(Code.CONFLICT, message, hint="the same options, or another folder", field=run_folder.FIELD)
    if len(found.parts) != len(parts):
        message = f"{path} has {len(found.parts)} experiments, not {len(parts)}"
        raise Refused(Code.CONFLICT, message, hint="the same options, or another folder", field=run_folder.FIELD)
    return found


def is_one(path: Path) -> bool:
    """Whether the folder is a collection rather than a run."""
    return (path / FILE).is_file()


def run_folders(path: Path, field: str) -> list[Path]:
    """The folder of a run itself, or those of the runs of a collection that have begun. Raises Refused if none has."""
    if not is_one(path):
        return [path]
    found = read(path, field)
    begun = [path / one.name for one in found.parts if found.begun(one.name)]
    if not begun:
        raise invalid(field, f"none of the experiments in {path} has begun", "a folder with measurements")
    return begun


def read(path: Path, field: str) -> Collection:
    """Read the folder of a collection. Raises Refused if it is none."""
    try:
        info = json.loads((path / FILE).read_text())
        if not isinstance(info, Mapping) or info.get("format") != FORMAT:
            raise ValueError("it is of another version")
        parts = [
            Part(
                str(one["experiment"]), [str(word) for word in one["options"]], str(one["outcome"]), str(one["reason"])
            )
            for one in info["experiments"]
        ]
    except OSError as error:
        raise invalid(field, f"{path} has no experiments: {FILE}: {error.strerror}", _HINT) from error
    except (ValueError, KeyError, TypeError) as error:
        raise invalid(field, f"{path / FILE} is damaged: {error}", _HINT) from error
    if any(Path(one.name).name != one.name or one.name.startswith(".") for one in parts):
        raise invalid(field, f"{path / FILE} is damaged: it names a folder outside", _HINT)
    return Collection(path, parts)

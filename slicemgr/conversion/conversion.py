"""One conversion: what it is to make, and its record, from which an interrupted one is undone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr import config as settings
from slicemgr.config import Config
from slicemgr.conversion import settings_text
from slicemgr.conversion.kept_files import Facts
from slicemgr.conversion.units import Units
from slicemgr.drivers.command import CommandFailed
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

RECORD = "make-centre.json"
_ERRORS = (SlicemgrError, CommandFailed, OSError)


@dataclass
class Conversion:
    """settings: the path of the settings. target: URL of the new database. broker: HOST:PORT. listen: its address.

    facts: what each step found before its change, by its name.
    """

    config: Config
    settings: Path
    target: str
    broker: str
    listen: str
    units: Units
    facts: dict[str, Facts] = field(default_factory=dict)

    @property
    def record(self) -> Path:
        return self.config.node.state_dir / RECORD

    def changed(self) -> bytes:
        """The settings of the centre. Refused if the file cannot be changed, or if they are not valid."""
        content = self.settings.read_bytes() if self.settings.exists() else b""
        changes = {"store": {"url": self.target}, "hub": {"broker": self.broker}}
        made = settings_text.changed(content.decode(), changes).encode()
        settings.parse(made, self.settings)
        return made

    @property
    def config_after(self) -> Config:
        return settings.parse(self.changed(), self.settings)


@dataclass(frozen=True)
class Step:
    """look: finds what `undo` needs, before the change. undo: may be repeated, and after a part of `do`.

    lasting: after it, an interrupted conversion is completed by a reboot, and not undone.
    """

    name: str
    does: str
    do: Callable[[Conversion], None]
    undo: Callable[[Conversion], None]
    look: Callable[[Conversion], Facts] = lambda _: {}
    lasting: bool = False


def run(conversion: Conversion, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    """All steps, or none: after an error those that have begun are undone. Raises Failed.

    The record is on the disk before a step begins, until the settings are those of the centre: a process that is killed
    before that leaves a machine that works as before, and a record for `undo`.
    """
    begun: list[Step] = []
    lasting = False
    try:
        for step in steps:
            conversion.facts[step.name] = step.look(conversion)
            begun.append(step)
            if not lasting:
                _save(conversion, begun)
            say(step.does)
            step.do(conversion)
            if step.lasting:
                lasting = True
                conversion.record.unlink()
    except BaseException as error:
        if begun:
            say(f"failed: {error or type(error).__name__}")
            _undo(conversion, begun, say)
        if isinstance(error, SlicemgrError):
            hint = "; ".join(filter(None, [error.hint, "this machine works as before"]))
            raise Failed(error.message, hint=hint, code=error.code) from error
        if isinstance(error, KeyboardInterrupt):
            raise Failed("interrupted", hint="this machine works as before") from error
        raise
    conversion.record.unlink(missing_ok=True)


def undo(conversion: Conversion, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    """Undo what an interrupted conversion has begun, in this or another process. Refused if there was none."""
    try:
        found = json.loads(conversion.record.read_text())
    except FileNotFoundError as error:
        raise Refused(Code.CONFLICT, "no conversion was interrupted") from error
    conversion.target, conversion.broker = found["target"], found["broker"]
    conversion.settings, conversion.facts = Path(found["settings"]), found["facts"]
    if any(step.lasting and step.name in found["begun"] for step in steps) and _complete(conversion):
        conversion.record.unlink()
        hint = "start what does not run: slicemgr-signer, slicemgr-hub, slicemgr-agent, slicemgr-web"
        raise Refused(Code.CONFLICT, "this machine is the centre of a testbed already", hint=hint)
    _undo(conversion, [step for step in steps if step.name in found["begun"]], say)


def _complete(conversion: Conversion) -> bool:
    """Whether the settings are those of the centre."""
    return conversion.settings.exists() and conversion.settings.read_bytes() == conversion.changed()


def _undo(conversion: Conversion, begun: Sequence[Step], say: Callable[[str], None]) -> None:
    """The last first. A step that cannot be undone does not keep the others from it. Raises Failed."""
    failures = []
    for step in reversed(begun):
        try:
            step.undo(conversion)
        except _ERRORS as error:
            failures.append(f"{step.name}: {error}")
        else:
            say(f"undone: {step.does}")
    if failures:
        _save(conversion, begun)
        hint = "correct that, then run `slicemgr make-centre --undo`"
        raise Failed(f"not everything could be undone: {'; '.join(failures)}", hint=hint)
    conversion.record.unlink(missing_ok=True)


def _save(conversion: Conversion, begun: Sequence[Step]) -> None:
    record = {
        "begun": [step.name for step in begun],
        "facts": conversion.facts,
        "target": conversion.target,
        "broker": conversion.broker,
        "settings": str(conversion.settings),
    }
    fresh = conversion.record.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(conversion.record)

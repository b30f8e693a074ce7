"""A program of `slicemgr.loads` in a sliver that waits for its start, and whose numbers are known if it is killed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slicemgr import loads
from slicemgr.bench.frame import load_hosts
from slicemgr.bench.frame.experiment import Json
from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed, Conversation
from slicemgr.errors import Failed

_TOO_LONG = 200  # characters of what a program said, in an error
_SIGNALLED = 128  # exit statuses above are of programs that a signal ended


class TimedLoad:
    """names: of the numbers that the program writes for each second."""

    def __init__(self, conversation: Conversation, sliver: str, names: Sequence[str]) -> None:
        self._conversation, self._sliver, self._names = conversation, sliver, names

    def wait(self) -> None:
        """Wait until it could begin. Raises Failed."""
        found = self._line()
        if found != "ready":
            raise Failed(f"{self._sliver}: a load cannot begin: {_shown(found)}")

    def begin(self) -> None:
        """Raises Failed."""
        try:
            self._conversation.say("begin")
        except CommandFailed as error:
            raise Failed(f"{self._sliver}: a load has ended: {error}") from error

    def series(self, seconds: int) -> Json:
        """When it began, by the clock of its sliver, and the numbers of each second by name.

        If it was killed, the seconds after that have zeros, and `killed` is true. Raises Failed.
        """
        begun, rows, killed = self._line(), list[list[float]](), False
        if not isinstance(begun, dict) or not load_hosts.is_measure(begun.get("at")):
            raise Failed(f"{self._sliver}: a load printed a result of another form: {_shown(begun)}")
        while len(rows) < seconds and not killed:
            try:
                rows.append(self._row(self._line()))
            except _Killed:
                killed = True
        rows += [[0.0] * len(self._names) for _ in range(seconds - len(rows))]
        series = {name: [row[at] for row in rows] for at, name in enumerate(self._names)}
        return {"at": begun["at"], **series, **({"killed": True} if killed else {})}

    def _row(self, found: object) -> list[float]:
        if not isinstance(found, list) or len(found) != len(self._names) or not all(map(load_hosts.is_measure, found)):
            raise Failed(f"{self._sliver}: a load printed a result of another form: {_shown(found)}")
        return found

    def _line(self) -> object:
        try:
            text = self._conversation.line()
        except CommandFailed as error:
            if error.status is None or not 0 <= error.status <= _SIGNALLED:
                raise _Killed(f"{self._sliver}: a load was killed") from error
            raise Failed(f"{self._sliver}: a load failed: {error}", hint="the image needs python3") from error
        try:
            found: object = json.loads(text)
        except ValueError:
            return text
        return found


class _Killed(Failed):
    """The kernel has ended the program, as it does for lack of memory."""


@contextmanager
def start(
    sliver: str,
    words: Sequence[str],
    program: str,
    arguments: Sequence[str | int],
    names: Sequence[str],
    seconds: float,
) -> Iterator[TimedLoad]:
    """Start a program of `loads` by the command prefix of a sliver. It is killed after `seconds`. Raises Failed."""
    text = Path(loads.__file__).with_name(program).read_text()
    line = f"cd /var/tmp && exec python3 -I -c {shlex.quote(text)} ready {shlex.join(map(str, arguments))}"
    try:
        with command.converse([*words, line], timeout=seconds) as conversation:
            yield TimedLoad(conversation, sliver, names)
    except CommandFailed as error:
        raise Failed(f"{sliver}: a load cannot be started: {error}") from error


def _shown(found: object) -> str:
    return str(found)[:_TOO_LONG]

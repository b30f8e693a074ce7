"""The probe inside a sliver: copied over ssh, run for one group of values at a time, and ended with this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slicemgr import wire
from slicemgr.audit.checks import parse
from slicemgr.drivers import command
from slicemgr.errors import Failed

PROGRAM = Path(__file__).parent.parent / "libexec" / "sliver-probe"
_PLACE = "/root/.sliver-probe"
_SECONDS = 120.0  # timeout of one short command in seconds: a login to an emulated machine is slow
_LISTENING = 100  # seconds for which the probe listens at most
_FIRST_LINES = 16  # maximum number of lines before a probe reports what it holds

Values = dict[str, list[str]]


class Inside:
    """One sliver of the audit. words: the command prefix that runs a command in it as root."""

    def __init__(self, name: str, shown: wire.Sliver, words: Sequence[str]) -> None:
        self.name = name
        self.shown = shown
        self._words = tuple(words)

    def bring(self) -> None:
        """Copy the probe into the sliver. Raises Failed."""
        line = f"umask 077 && cat > {_PLACE} && chmod 700 {_PLACE}"
        self._run([line], PROGRAM.read_bytes(), _SECONDS)

    def probe(self, words: Sequence[object], timeout: float = _SECONDS) -> Values:
        """The values of one group of probes. timeout: seconds. Raises Failed if the probe fails or takes longer."""
        return parse(self._run([self._line(words)], None, timeout).decode(errors="replace"))

    @contextmanager
    def holding(self, words: Sequence[object]) -> Iterator[Values]:
        """The values of a probe that keeps its resources until the context ends."""
        with command.converse([*self._words, self._line(words)], timeout=_SECONDS) as talk:
            found: Values = {}
            for _ in range(_FIRST_LINES):
                try:
                    found = parse(talk.line())
                except command.CommandFailed as error:
                    raise Failed(f"the probe in {self.name} failed: {error}") from error
                if found:
                    break
            yield found

    def received(self, port: int, during: Callable[[], None]) -> int | None:
        """The number of UDP datagrams that reach a port during a call; None if the probe does not report it."""
        with command.converse([*self._words, self._line(("listen", port, _LISTENING))], timeout=_SECONDS) as talk:
            try:
                if parse(talk.line()).get("listen") != ["ok"]:
                    raise Failed(f"the probe in {self.name} cannot listen on port {port}")
                during()
                talk.hang_up()
                found = parse(talk.line()).get("received", [""])[0]
            except command.CommandFailed as error:
                raise Failed(f"the probe in {self.name} failed: {error}") from error
        return int(found) if found.isdecimal() else None

    @staticmethod
    def _line(words: Sequence[object]) -> str:
        return shlex.join([_PLACE, *map(str, words)])

    def _run(self, words: Sequence[str], data: bytes | None, timeout: float) -> bytes:
        try:
            return command.run([*self._words, *words], timeout=timeout, input=data)
        except command.CommandFailed as error:
            raise Failed(f"the probe in {self.name} failed: {error}") from error

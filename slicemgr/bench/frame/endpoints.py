"""The two ends of a link: how programs are started there, and the link between them held to a rate.

Programs are started by words, such as `ssh HOST` or `tools/nodebox enter BOX --`; no words: here. Each one lives as
long as its standard input is held open: whatever ends this process, ends them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from slicemgr.client import Client
from slicemgr.drivers import command
from slicemgr.drivers.network import traffic
from slicemgr.errors import Code, Failed, Refused, invalid

MARK = "5a11:"  # handle of our queueing discipline: no other one is ever taken away
_SECONDS = 60.0  # of one short command
_READY = "ready"
# Waits for a line before it begins, and ends the program when its input does. A shell reads it from its own input, so
# that no quoting is lost on the way; the program gets none of it.
_HELD = (
    "exec 3<&0; echo {ready}; read -r go <&3 || exit 1; {program} </dev/null & child=$!; "
    "( cat <&3; kill $child ) >/dev/null 2>&1 & watcher=$!; "
    "wait $child; status=$?; kill $watcher 2>/dev/null; exit $status"
)


@dataclass(frozen=True, slots=True)
class End:
    """connect: to the service whose slivers are there, None if there is none. words: start programs on the node."""

    connect: Callable[[], Client] | None
    node: str
    words: tuple[str, ...]


def held(program: Sequence[str]) -> str:
    """A line for a shell."""
    return _HELD.format(ready=_READY, program=shlex.join(program))


@contextmanager
def started(words: Sequence[str], program: Sequence[str], timeout: float) -> Iterator[command.Conversation]:
    """A program that waits, once `await_ready` has returned, for the line that lets it go. Raises CommandFailed."""
    with command.converse([*words, "sh"], timeout=timeout) as talk:
        talk.say(held(program))
        yield talk


def await_ready(talk: command.Conversation) -> None:
    """Raises CommandFailed if it is not to be."""
    while talk.line() != _READY:
        pass


def rest(talk: command.Conversation) -> tuple[str, int | None]:
    """What a program prints until it ends, and its exit status."""
    lines: list[str] = []
    while True:
        try:
            lines.append(talk.line())
        except command.CommandFailed as ended:
            return "\n".join(lines), ended.status


class Link:
    """Between the two nodes, from the far one to `address` of the near one."""

    def __init__(self, near: End, far: End, address: str) -> None:
        self._sides = (near.words, far.words)
        self._address = address
        self._devices: tuple[str, str] | None = None

    @property
    def found(self) -> bool:
        return self._devices is not None

    def find(self) -> tuple[str, str]:
        """The devices at the near and the far end. Refused if it is no link between two nodes."""
        if self._devices is None:
            near, far = self._sides
            there = _route(far, self._address)
            back = _route(near, there["prefsrc"])
            if "lo" in (there["dev"], back["dev"]):
                message = f"{self._address} is reached without leaving the node"
                raise invalid("--peer-exec", message, "words that start programs on another node, such as 'ssh HOST'")
            self._devices = (back["dev"], there["dev"])
        return self._devices

    def shape(self, rate: int | None) -> None:
        """Hold both directions to a rate, bits per second; None: as it was. Raises Failed, Refused."""
        self.find()
        self.free()
        if rate is None:
            return
        for words, device in zip(self._sides, self.find(), strict=True):
            tc = ["tc", "qdisc", "add", "dev", device, "root", "handle", MARK, *traffic.bucket(rate).split()]
            try:
                _run(words, tc)
            except Failed as error:
                error.hint = f"is a queueing discipline of somebody else on {device}? `tc qdisc show dev {device}`"
                raise

    def free(self) -> None:
        """Take away what holds it, of this process or an earlier one."""
        for words, device in zip(self._sides, self.find(), strict=True):
            if any(
                one.get("handle") == MARK for one in _json_rows(words, ["tc", "-j", "qdisc", "show", "dev", device])
            ):
                _run(words, ["tc", "qdisc", "del", "dev", device, "root", "handle", MARK])


def _route(words: Sequence[str], address: str) -> dict[str, str]:
    try:
        found = _json_rows(words, ["ip", "-j", "route", "get", address])
        return {"dev": found[0]["dev"], "prefsrc": found[0]["prefsrc"]}
    except (Failed, LookupError) as error:
        hint = "is the link up? `ip -br link`, `ip route`"
        where = shlex.join(words) or "here"
        raise Refused(Code.UNAVAILABLE, f"no way to {address} from {where}: {error}", hint=hint) from error


def _json_rows(words: Sequence[str], argv: Sequence[str]) -> list[dict[str, str]]:
    answer = json.loads(_run(words, argv) or b"[]")
    return [one for one in answer if isinstance(one, dict)]


def _run(words: Sequence[str], argv: Sequence[str]) -> bytes:
    try:
        return command.run([*words, *argv], timeout=_SECONDS)
    except command.CommandFailed as error:
        raise Failed(str(error)) from error

"""The two nodes of a link: start programs on them, and limit the link to a rate.

A program is started by a command prefix, such as `ssh HOST` or `tools/nodebox enter BOX --`; an empty prefix means
this host. Each program ends when its standard input is closed, so it does not outlive this process.
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

MARK = "5a11:"  # handle of the queueing discipline of slicemgr; only one with this handle is removed
_SECONDS = 60.0  # timeout of one short command
_READY = "ready"
# Waits for a line before it starts the program, and kills the program when the input ends. The shell reads this script
# from its standard input, so that no level of quoting is lost on the way; the program gets none of that input.
_HELD = (
    "exec 3<&0; echo {ready}; read -r go <&3 || exit 1; {program} </dev/null & child=$!; "
    "( cat <&3; kill $child ) >/dev/null 2>&1 & watcher=$!; "
    "wait $child; status=$?; kill $watcher 2>/dev/null; exit $status"
)


@dataclass(frozen=True, slots=True)
class End:
    """A node of the link.

    connect: makes a client of the service that manages the node; None if there is no such service. words: the command
    prefix that starts programs on the node.
    """

    connect: Callable[[], Client] | None
    node: str
    words: tuple[str, ...]


def held(program: Sequence[str]) -> str:
    """The script for a shell that holds the program back until a line arrives."""
    return _HELD.format(ready=_READY, program=shlex.join(program))


@contextmanager
def started(words: Sequence[str], program: Sequence[str], timeout: float) -> Iterator[command.Conversation]:
    """Start a program that, after `await_ready` has returned, waits for a line before it begins.

    timeout: seconds. Raises CommandFailed.
    """
    with command.converse([*words, "sh"], timeout=timeout) as talk:
        talk.say(held(program))
        yield talk


def await_ready(talk: command.Conversation) -> None:
    """Wait until the shell is ready to start the program. Raises CommandFailed if it ends before."""
    while talk.line() != _READY:
        pass


def rest(talk: command.Conversation) -> tuple[str, int | None]:
    """The remaining output of a program, and its exit status."""
    lines: list[str] = []
    while True:
        try:
            lines.append(talk.line())
        except command.CommandFailed as ended:
            return "\n".join(lines), ended.status


class Link:
    """The link between two nodes, over which the far node reaches `address` of the near node."""

    def __init__(self, near: End, far: End, address: str) -> None:
        self._sides = (near.words, far.words)
        self._address = address
        self._devices: tuple[str, str] | None = None

    @property
    def found(self) -> bool:
        return self._devices is not None

    def find(self) -> tuple[str, str]:
        """The network devices of the near and the far node. Raises Refused if no link between two nodes is used."""
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
        """Limit both directions to a rate in bits per second; None removes the limit. Raises Failed, Refused."""
        self.find()
        self.free()
        if rate is None:
            return
        for words, device in zip(self._sides, self.find(), strict=True):
            tc = ["tc", "qdisc", "add", "dev", device, "root", "handle", MARK, *traffic.bucket(rate).split()]
            try:
                _run(words, tc)
            except Failed as error:
                error.hint = f"is there another queueing discipline on {device}? `tc qdisc show dev {device}`"
                raise

    def free(self) -> None:
        """Remove the limit, also one that an earlier process set."""
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

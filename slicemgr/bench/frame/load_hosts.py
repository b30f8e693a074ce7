"""Runs the programs of `slicemgr.loads`: in one sliver after the other over ssh, or on the node by its agent."""

from __future__ import annotations

import itertools
import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from slicemgr import loads, wire
from slicemgr.bench.frame import cleanup as leave
from slicemgr.bench.frame import guard, slivers
from slicemgr.bench.frame.experiment import Json, Missing, Progress, Step
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.client import Client
from slicemgr.client.ssh import greets
from slicemgr.drivers import command
from slicemgr.errors import Failed

TYPES = ("lxc", "kvm")
MACHINE = 384 << 20  # bytes beyond the memory of a machine, and of programs elsewhere: the page cache is reclaimable
_UP_SECONDS = {"lxc": 120.0, "kvm": 900.0}
_SETTLE_SECONDS = 900.0
_INSTALL_SECONDS = 1800.0
_SEND_SECONDS = 600.0
_NODE_SECONDS = 4000.0  # timeout of one operation: longer than the agent's timeout of a program
# The first boot continues after sshd answers. A container has the files of cloud-init, but no service starts it.
_SETTLED = "if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null 2>&1; fi; sync; true"
_OPERATIONS = ("io", "sysbench")
_ARRIVAL = 5.0  # seconds within which an interrupted request, whose answer is not read, has become an operation
_NO_PYTHON = 127  # exit status of a shell for a program that does not exist


@dataclass(frozen=True, slots=True)
class Way:
    """How slivers are created and entered.

    connect: makes a client. key: the line of the public key, and the content of the private key. login: returns the
    command prefix that runs a command line in the sliver of a slice, for the file of a private key. requests: the
    request of a slice without its name, by type. directory: the working directory of programs in a sliver.
    """

    connect: Callable[[], Client]
    node: str
    key: tuple[str, bytes]
    login: Callable[[str, wire.Sliver, Path], list[str]]
    prefix: str
    requests: dict[str, wire.SliceRequest]
    directory: str = "/var/tmp/slicemgr-bench"


class Slivers:
    """One sliver at a time: `use` with another type or turn deletes the sliver before."""

    def __init__(self, way: Way, client: Client) -> None:
        self._way = way
        self._client = client
        self._name = ""
        self._words: list[str] = []
        self._key = slivers.Key(way.key)
        self.sent = False  # whether a program was sent to the present sliver

    def use(
        self, turn: int, sliver_type: str, progress: Progress, install: str = "", lacking: SentProgram | None = None
    ) -> None:
        """Use the sliver of this turn and type, which is created unless it is the present one.

        install: a shell command that is run in a new sliver. lacking: a program that is sent to a new sliver unless it
        has one of that name. Raises Missing if the node cannot run that type, the command fails or the program does not
        run there, and the errors of the service.
        """
        name = f"{self._way.prefix}{turn}-{sliver_type}"
        if self._name == name:
            return
        self.leave(progress)
        facts = self._client.nodes.get(self._way.node)["facts"]
        if not _of(facts.get("kinds"), sliver_type, True):
            reason = _of(facts.get("kinds_reason"), sliver_type, "its libvirt has none")
            raise Missing(f"the node runs no {sliver_type}: {reason}")
        sliver = self._create(name, sliver_type)
        self._words = self._way.login(name, sliver, self._key.file)
        if sliver_type == "kvm":
            progress.say(f"{name} is up; waiting until its first boot is over")
            try:
                self._shell(_SETTLED, _SETTLE_SECONDS)
            except command.CommandFailed as error:
                raise Failed(f"{name}: its first boot does not end: {error}") from error
        if install:
            self._install(install, sliver_type)
        self.sent = lacking is not None and self._send(lacking, sliver_type, progress)
        self._name = name

    def run(self, program: str, words: Sequence[str], names: Sequence[str], timeout: float) -> Json:
        """Run a program of `loads` in the present sliver and return the numbers `names` of its result.

        timeout: seconds. Raises Missing or Failed.
        """
        text = Path(loads.__file__).with_name(program).read_bytes()
        place = shlex.quote(self._way.directory)
        path = f'PATH="$PATH":{shlex.quote(self._programs)}; export PATH'
        line = f"{path}; mkdir -p {place} && cd {place} && exec python3 -I - {shlex.join(words)}"
        try:
            said = command.run([*self._words, line], timeout=timeout, input=text)
        except command.CommandFailed as error:
            if error.status == _NO_PYTHON:
                raise Missing(f"{self._image()} has no python3 (to install it: apt-get install python3)") from error
            raise Failed(f"{self._name}: {program}: {error}", hint=f"`slicectl console {self._name}`") from error
        return checked(said.decode(errors="replace"), names, self._image())

    def leave(self, progress: Progress) -> None:
        """Delete all slices of this run. Raises SlicemgrError."""
        self._name = ""
        leave.delete(self._client, self._way.prefix, progress)

    def close(self) -> None:
        self._key.close()

    def _create(self, name: str, sliver_type: str) -> wire.Sliver:
        created = slivers.ask(self._client, self._request(name, sliver_type))
        slivers.succeeded(self._client.operations.wait(created["operation"]["id"]))
        sliver = self._client.slices.get(name)["slivers"][0]
        slivers.await_banner(name, lambda: greets(sliver), _UP_SECONDS[sliver_type], pause=0.2)
        return sliver

    def check(self, sliver_type: str) -> None:
        """Raises Refused if the service would not create such a slice."""
        slivers.dry_run(self._client, self._request(f"{self._way.prefix}try", sliver_type))

    def _request(self, name: str, sliver_type: str) -> wire.SliceRequest:
        request: wire.SliceRequest = {**self._way.requests[sliver_type], "name": name, "type": sliver_type}
        request.update({"node": self._way.node, "ssh_keys": [self._key.line], "ports": 1})
        return request

    def _shell(self, line: str, timeout: float) -> None:
        command.run([*self._words, line], timeout=timeout)

    def _install(self, line: str, sliver_type: str) -> None:
        try:
            self._shell(f"export DEBIAN_FRONTEND=noninteractive; {line}", _INSTALL_SECONDS)
        except command.CommandFailed as error:
            said = error.stderr.strip().splitlines()
            why = said[-1] if said else f"exit status {error.status}"
            raise Missing(f"in a sliver of {sliver_type} this failed: {line}: {why}") from error

    @property
    def _programs(self) -> str:
        return f"{self._way.directory}-programs"

    def _send(self, program: SentProgram, sliver_type: str, progress: Progress) -> bool:
        """Send a program unless the sliver has it. Returns whether it was sent. Raises Missing, Failed."""
        own = f"if command -v {shlex.quote(program.name)} >/dev/null; then echo own; fi"
        try:
            if command.run([*self._words, own], timeout=_SETTLE_SECONDS).strip():
                return False
        except command.CommandFailed as error:
            raise Failed(f"in a sliver of {sliver_type}: {error}") from error
        progress.say(f"{sliver_type} has no {program.name}: it gets the one of this machine, with its libraries")
        line = program.unpack(self._programs)
        try:
            command.run([*self._words, line], timeout=_SEND_SECONDS, input=program.archive)
        except command.CommandFailed as error:
            why = error.stderr.strip()[:300]
            message = f"in a sliver of {sliver_type}, the {program.name} of this machine does not run: {why}"
            raise Missing(message) from error
        return True

    def _image(self) -> str:
        sliver_type = self._name.rpartition("-")[2]
        request = self._way.requests.get(sliver_type)
        return f"the image {request['image']}" if request else "the sliver"


class OnNode:
    """Measurements as operations of the agent, one at a time. At the end of the run, a running operation is awaited."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._asked = self._answered = False

    def run(self, ask: Callable[[], wire.Operation], names: Sequence[str]) -> Json:
        """Request an operation and return the numbers `names` that it measured.

        Raises Missing, or Failed with the error of the agent.
        """
        self._asked = True  # set before the request: an interruption may lose the answer, but not the operation
        self._answered = False
        operation = ask()
        self._answered = True
        ended = self._client.operations.wait(operation["id"], _NODE_SECONDS)
        self._asked = False
        if ended["state"] == "failed" or ended["result"] is None:
            raise Failed(f"on the node: {ended['error']}", hint=ended["hint"] or "")
        return numbers(dict(ended["result"]["measured"]), names, "the node")

    def quiet(self, progress: Progress) -> None:
        """Wait for the operations that this or an earlier process requested: concurrent loads disturb each other."""
        for kind, state in itertools.product(_OPERATIONS, ("queued", "running")):
            for one in self._client.operations.list(kind=kind, state=state):
                progress.say("the node finishes an earlier measurement; this takes a moment")
                self._client.operations.wait(one["id"], _NODE_SECONDS)

    def leave(self, progress: Progress) -> None:
        """Wait for the operation that is running: the agent removes its files when it finishes."""
        if self._asked:
            if not self._answered:
                time.sleep(_ARRIVAL)
            self.quiet(progress)
            self._asked = False


def in_words(values: Mapping[str, object]) -> Json:
    """Parameters for a report, with lists and tables as text."""
    kept: Json = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            kept[name] = " ".join(f"{key}={one}" for key, one in value.items())
        else:
            kept[name] = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return kept


class InPlaces:
    """An experiment in one place after the other, all in the main thread; see `experiment.Experiment`."""

    def __init__(self, way: Way, places: Sequence[str]) -> None:
        self._way = way
        self._places = places
        self._client = way.connect()
        self._slivers = Slivers(way, self._client)
        self._on_node = OnNode(self._client, way.node)

    def state(self) -> guard.State:
        return guard.state(self._facts())

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if another experiment has slices, or if the service would not create such slices."""
        facts = self._facts()
        guard.state(facts)
        leave.refuse_others(self._client, self._way.prefix)
        for sliver_type in TYPES:
            if sliver_type in self._places and _of(facts.get("kinds"), sliver_type, True):
                self._slivers.check(sliver_type)
        self._slivers.leave(progress)
        self._on_node.quiet(progress)
        return [f"resumed at {todo[0].title}"] if done else []

    def interrupt(self) -> None:
        """Nothing to do: all runs in the main thread, which the signal itself interrupts."""

    def clean(self, progress: Progress) -> None:
        """Delete the slivers and wait for the node, also if the deletion fails. Raises SlicemgrError."""
        try:
            self._slivers.leave(progress)
        finally:
            self._on_node.leave(progress)

    def close(self) -> None:
        self._slivers.close()
        self._client.close()

    def _facts(self) -> dict[str, Any]:
        return self._client.nodes.get(self._way.node)["facts"]


def checked(said: str, names: Sequence[str], where: str) -> Json:
    """The numbers `names` in the result of a program of `loads`. Raises Missing, Failed."""
    return numbers(result(said, where), names, where)


def result(said: str, where: str) -> Json:
    """The result of a program of `loads`, which is the last line of its output. Raises Failed."""
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1])
        if not isinstance(found, dict):
            raise TypeError
    except (ValueError, IndexError, TypeError) as error:
        raise Failed(f"{where}: the measuring program printed no result") from error
    return found


def is_measure(value: object) -> TypeGuard[float]:
    """Whether a value of a result is a number as programs measure it: finite, and not below 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def numbers(found: Json, names: Sequence[str], where: str) -> Json:
    """The numbers `names` of a result, and the version of the program if it has one. Raises Missing, Failed."""
    if "missing" in found:
        adds = f" (to install it: `{found['adds']}`)" if found.get("adds") else ""
        raise Missing(f"{where}: {str(found['missing'])[:300]}{adds[:300]}")
    if "failed" in found:
        raise Failed(f"{where}: {str(found['failed'])[:500]}")
    kept: Json = {}
    for name in names:
        value = found.get(name)
        if not is_measure(value):
            raise Failed(f"{where}: {name} is {str(value)[:40]!r}, not a number")
        kept[name] = float(value)
    if isinstance(found.get("version"), str):
        kept["version"] = str(found["version"])[:40]
    return kept


def _of(value: object, name: str, default: Any) -> Any:
    return value.get(name, default) if isinstance(value, dict) else default

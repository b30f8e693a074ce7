"""The workloads of slivers in experiments of memory: how each is prepared, and what it is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slicemgr import loads
from slicemgr.bench.experiments.memory_setting import FILE, MEMORY
from slicemgr.bench.frame import sent_program, timed_load
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.bench.frame.stores import RECORD, STORES, Store
from slicemgr.bench.frame.timed_load import TimedLoad
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, Refused

NAMES = ("each_second", "p99")
PAUSE = 4
_PLACE = "/var/tmp/slicemgr-bench"
_PROGRAMS, _FOLDER = f"{_PLACE}/programs", f"{_PLACE}/store"
_SLACK = 300.0  # seconds for what is not measured


@dataclass(frozen=True, slots=True)
class Sliver:
    """words: the command prefix that runs a command in it. size: bytes that it uses. seed: of what it does."""

    name: str
    words: Sequence[str]
    size: int
    seed: int


class Workload(Protocol):
    def check(self) -> None:
        """Raises Refused if this machine lacks what the workload needs."""

    def prepare(self, sliver: Sliver) -> None:
        """Fill the memory of a sliver. Raises Failed."""

    def load(self, sliver: Sliver, seconds: int, pause: int = PAUSE) -> AbstractContextManager[TimedLoad]:
        """The program that uses it for so many seconds, with the numbers NAMES for each. Raises Failed.

        pause: for how many times as long as it works it pauses.
        """


class FileWorkload:
    """Reads pages of a file at random, which are in the page cache."""

    def check(self) -> None:
        return

    def prepare(self, sliver: Sliver) -> None:
        text = Path(loads.__file__).with_name("memory.py").read_bytes()
        line = f"cd /var/tmp && exec python3 -I - make {sliver.size} {sliver.seed}"
        said = _run(sliver, line, text)
        if b"missing" in said:
            raise Failed(f"{sliver.name}: a load failed: {said[:200].decode(errors='replace')}")

    def load(self, sliver: Sliver, seconds: int, pause: int = PAUSE) -> AbstractContextManager[TimedLoad]:
        return _load(sliver, ("read", sliver.size, seconds, sliver.seed, pause), seconds)


class MemoryWorkload:
    """Reads and writes pages of its own memory at random."""

    def check(self) -> None:
        return

    def prepare(self, sliver: Sliver) -> None:
        """The program itself fills its memory before it begins."""

    def load(self, sliver: Sliver, seconds: int, pause: int = PAUSE) -> AbstractContextManager[TimedLoad]:
        return _load(sliver, ("touch", sliver.size, seconds, sliver.seed, pause), seconds)


def _load(sliver: Sliver, arguments: Sequence[str | int], seconds: int) -> AbstractContextManager[TimedLoad]:
    return timed_load.start(sliver.name, sliver.words, "memory.py", arguments, NAMES, seconds + _SLACK)


@dataclass(frozen=True, slots=True)
class StoreWorkload:
    """A store that is asked for what YCSB's workload `operations` has. Its memory has the size of the sliver's data."""

    store: Store
    operations: str

    def check(self) -> None:
        self.store.sent()

    def prepare(self, sliver: Sliver) -> None:
        program = self.store.sent()
        unpack = f"rm -rf {_PLACE} && {program.unpack(_PROGRAMS)}"
        start = f"{unpack} && chmod 711 {_PLACE} && {self.store.start(_PROGRAMS, _FOLDER, sliver.size)}"
        _run(sliver, start, program.archive)
        text = Path(loads.__file__).with_name("ycsb.py").read_bytes()
        words = (self.store.name, *self._address, *self._records(sliver), str(sliver.seed))
        said = _run(sliver, f"exec python3 -I - load {shlex.join(words)}", text)
        if b"failed" in said:
            raise Failed(f"{sliver.name}: the store was not filled: {said[:200].decode(errors='replace')}")

    def load(self, sliver: Sliver, seconds: int, pause: int = PAUSE) -> AbstractContextManager[TimedLoad]:
        what = ("run", self.store.name, *self._address, self.operations, *self._records(sliver))
        arguments = (*what, seconds, sliver.seed, pause)
        return timed_load.start(sliver.name, sliver.words, "ycsb.py", arguments, NAMES, seconds + _SLACK)

    @property
    def _address(self) -> tuple[str]:
        return (self.store.address(_FOLDER),)

    def _records(self, sliver: Sliver) -> tuple[str, str]:
        """RECORDS and BYTES of `loads.ycsb`."""
        return str(self.store.records_for(sliver.size)), str(RECORD)


def stress_program() -> SentProgram:
    """Raises Refused if it is not installed here."""
    found = sent_program.find("stress-ng")
    if found is None:
        raise Refused(Code.UNAVAILABLE, "stress-ng is not installed on this machine", hint="apt install stress-ng")
    return found


def send_stress(sliver: Sliver) -> None:
    """Send the program that the load `stress` starts. Raises Refused or Failed."""
    program = stress_program()
    _run(sliver, program.unpack(_PROGRAMS), program.archive)


def _run(sliver: Sliver, line: str, given: bytes) -> bytes:
    try:
        return command.run([*sliver.words, line], input=given, timeout=_SLACK)
    except command.CommandFailed as error:
        raise Failed(f"{sliver.name}: {error}", hint="the image needs python3, tar, gzip and util-linux") from error


WORKLOADS: Mapping[str, Workload] = {
    FILE: FileWorkload(),
    MEMORY: MemoryWorkload(),
    **{
        f"{store.name}-{operations}": StoreWorkload(store, operations)
        for store in STORES.values()
        for operations in store.workloads
    },
}

"""Namespaces and mounts, which the standard library lacks, and functions for processes and files."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_libc = ctypes.CDLL(None, use_errno=True)


class BoxError(Exception):
    """A box could not be created, entered or removed; the text is for the user."""


def loop_files() -> list[str]:
    """The files behind loop devices, as the kernel reports them."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # the device is being removed
            found.append(file.read_text().strip())
    return found


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Join the namespaces of the process behind a pidfd (Linux 5.8). Raises OSError."""
    _check(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: Path, kind: str = "none", flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError that names the target."""
    result = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount {kind} {source} on {target}")


def bind(source: Path, target: Path) -> None:
    mount(str(source), target, flags=MS_BIND)


def umount(target: Path, flags: int = 0) -> None:
    """umount2(2). Raises OSError."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def command(argv: Sequence[str | Path], *, input: str = "", timeout: float = 60) -> str:
    """Run a program of the host and return its stdout; a failure becomes a BoxError with its stderr."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=input, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise BoxError(f"{words[0]} is not installed: run tools/setup") from error
    except subprocess.TimeoutExpired as error:
        raise BoxError(f"{' '.join(words)}: no end after {timeout:g} s") from error
    if done.returncode != 0:
        raise BoxError(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def start_time(pid: int) -> int | None:
    """The start time of a process in clock ticks after boot; None if there is no such living process.

    A zombie with other threads lives: a killed process holds its files and locks until its last thread has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = fields[0] in "ZX" and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if ended else int(fields[19])


@dataclass(frozen=True, slots=True)
class Process:
    """A process, distinguished by its start time from a later one with the same ID."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        started = start_time(pid)
        if started is None:
            raise BoxError(f"process {pid} ended at once")
        return cls(pid, started)

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def write_json(path: Path, value: Any) -> None:
    """Replace a file by JSON, atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit, for a daemon with descriptors for each sliver."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
    """Whether the condition became true within `seconds`. The pause between checks grows with time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    return True


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock `directory`, which is created if missing. No lock file remains."""
    descriptor = _locked_descriptor(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked_descriptor(directory: Path) -> int:
    """An exclusive lock on the directory at that path, and not on one that was removed meanwhile."""
    while True:
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), directory.stat()):
                    return descriptor
            os.close(descriptor)


def detach(work: Callable[[], None], log: Path, environment: Mapping[str, str] | None = None) -> int:
    """Run `work`, which ends in exec, in a detached process. Returns its pid after exec.

    The output is written to `log`. An exception before exec is raised here as BoxError.
    """
    read_end, write_end = os.pipe()  # both close on exec: end of file means exec worked
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        try:
            os.write(write_end, b"%d\n" % os.getpid())
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if environment:
                os.environ.update(environment)
            work()
        except Exception as error:  # noqa: BLE001 - reported to the caller through the pipe
            os.write(write_end, str(error).encode())
        finally:
            os._exit(127)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as stream:
        pid, _, complaint = stream.read().partition("\n")
    if complaint:
        raise BoxError(complaint)
    return int(pid)

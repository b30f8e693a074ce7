"""Run other programs.

slicemgr starts processes only here: with an argument list, an environment that inherits only proxy addresses, a
standard input that is closed or supplied by the caller, and always a time limit. A failure is logged here once and
raised as `CommandFailed` with the end of the program's standard error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from slicemgr.human import printable

log = logging.getLogger(__name__)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TAIL = 2000  # characters of stderr kept for the error
_LONGEST_LINE = 1 << 20  # bytes, the longest line that Conversation.line accepts
_FAREWELL = 10.0  # seconds that a program has for its cleanup after its standard input was closed


class CommandFailed(Exception):
    """A program did not start, exceeded its time limit, or exited with an error.

    status: the exit status; None if the program exceeded its time limit or wrote an overlong line; -1 if it did not
    start. stderr: the end of its standard error, with control characters escaped, because programs repeat text from
    untrusted files and guests.
    """

    def __init__(self, argv: Sequence[str], status: int | None, stderr: str) -> None:
        stderr = printable(stderr, keep="\n\t")
        what = "timed out" if status is None else f"exit status {status}"
        super().__init__(f"{argv[0]}: {what}: {stderr.strip() or 'no message'}")
        self.argv = tuple(argv)
        self.status = status
        self.stderr = stderr


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every program: fixed values, the proxy variables of this process, and `extra`."""
    proxies = {
        name: value for name, value in os.environ.items() if name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }
    return {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", **proxies, **(extra or {})}


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    keep: Sequence[int] = (),
) -> bytes:
    """Run a program to its end and return its standard output (b"" if `stdout` is given).

    timeout: seconds, after which the whole process group is killed. keep: file descriptors that the program inherits.
    Raises CommandFailed.
    """
    words = [str(word) for word in argv]
    log.debug("run %s", shlex.join(words))
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            cwd=cwd,
            start_new_session=True,
            pass_fds=tuple(keep),
        )
    except OSError as error:
        log.error("cannot start %s: %s", words[0], error)
        raise CommandFailed(words, -1, str(error)) from error
    try:
        out, err = process.communicate(input, timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        log.error("%s ran longer than %s s", shlex.join(words), timeout)
        raise CommandFailed(words, None, f"no end after {timeout:g} s") from None
    except BaseException:
        _kill_group(process)
        raise
    if process.returncode != 0:
        tail = err.decode(errors="replace")[-_TAIL:]
        failure = CommandFailed(words, process.returncode, tail)
        log.error("%s: exit status %s: %s", shlex.join(words), process.returncode, failure.stderr.strip())
        raise failure
    return out or b""


class Conversation:
    """A running program that reads commands and writes output line by line. `converse` ends it with its context."""

    def __init__(self, process: subprocess.Popen[bytes], complaints: IO[bytes]) -> None:
        self._process = process
        self._complaints = complaints

    @property
    def ended(self) -> bool:
        """Whether the program has exited."""
        return self._process.poll() is not None

    def say(self, line: str) -> None:
        """Write one line to the program's standard input. Raises CommandFailed if the program has exited."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self.failure() from error

    def hang_up(self) -> None:
        """Close the program's standard input, without waiting for the program to exit."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def line(self) -> str:
        """The next line of output. Raises CommandFailed if the program has exited or the line exceeds 1 MiB."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline(_LONGEST_LINE)
        if not line:
            raise self.failure()
        if len(line) == _LONGEST_LINE:
            raise CommandFailed(self._process.args, None, "its line does not end")  # type: ignore[arg-type]
        return line.decode(errors="replace").rstrip("\n")

    def until(self, mark: str) -> list[str]:
        """The lines before the line `mark`. Raises CommandFailed if the program exits before it writes `mark`."""
        lines: list[str] = []
        while (line := self.line()) != mark:
            lines.append(line)
        return lines

    def failure(self) -> CommandFailed:
        """The error for a program that has exited, with the end of its standard error."""
        status = self._process.wait()
        self._complaints.seek(0)
        tail = self._complaints.read().decode(errors="replace")[-_TAIL:]
        return CommandFailed(self._process.args, status, tail)  # type: ignore[arg-type]


@contextlib.contextmanager
def converse(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    stdin: IO[bytes] | None = None,
    keep: Sequence[int] = (),
) -> Iterator[Conversation]:
    """Start a program for an exchange of lines. It and its children are killed after `timeout` seconds.

    When the context ends, the program's standard input is closed, the program has 10 s to remove its temporary files,
    and its process group is killed. stdin: a file that the program reads instead of `say`'s lines; the program is then
    killed at the end of the context without those 10 s. keep: file descriptors that the program inherits.
    Raises CommandFailed if the program cannot be started.
    """
    words = [str(word) for word in argv]
    log.debug("converse with %s", shlex.join(words))
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment(env),
                start_new_session=True,
                pass_fds=tuple(keep),
            )
        except OSError as error:
            log.error("cannot start %s: %s", words[0], error)
            raise CommandFailed(words, -1, str(error)) from error
        limit = threading.Timer(timeout, _kill_group, (process,))
        limit.daemon = True
        limit.start()
        try:
            yield Conversation(process, complaints)
        finally:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_FAREWELL)
            limit.cancel()
            _kill_group(process)
            if process.stdout is not None:
                process.stdout.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

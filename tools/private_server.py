"""A server for tests that runs within a context, with its files in a temporary directory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class PrivateServer:
    """name: for errors. prefix: of its directory, whose path is short enough for a socket, and which is removed at the
    end. kept: a directory to use instead, which remains for the next server. place: where the directory is made.
    """

    def __init__(self, name: str, prefix: str, kept: Path | None = None, place: Path = Path("/tmp")) -> None:
        self._name = name
        self._kept = kept is not None
        self.folder = kept or Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self.folder.mkdir(exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if not self._kept:
            shutil.rmtree(self.folder)

    def _prepare(self) -> None:
        """Make the files of the server."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _run(self, words: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> None:
        """Start a program, and wait until it answers. Raises RuntimeError if it ends before, or after the time."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment
            )
        deadline = time.monotonic() + seconds
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._name} does not start: {self.log()[-2000:]}")
            time.sleep(0.05)

    def _end(self, number: signal.Signals, seconds: float | None = None) -> None:
        """Send a signal, and kill the program: at once, or if it still runs after the time, which is an error."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            if seconds is not None:
                process.wait(timeout=seconds)
        finally:
            process.kill()
            process.wait()

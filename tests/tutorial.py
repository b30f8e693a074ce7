"""Runs the command blocks of a tutorial as a user does: in one shell, with a terminal for passwords."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PASSWORD = re.compile(rb"(New password|Repeat for confirmation|Password): ?\Z")


class Done(NamedTuple):
    """status: of the shell, which ends at the first failed command. shown: the output of the terminal."""

    status: int
    shown: str


def commands(text: str) -> list[str]:
    """The lines after `$ ` of each block marked console, with those after `> ` that continue them.

    Raises ValueError for a block without a command, because no test would cover it.
    """
    found: list[str] = []
    for block in _BLOCK.findall(text):
        lines = block.splitlines()
        if not lines or not lines[0].startswith("$ "):
            raise ValueError(f"a block begins with {lines[:1]}, not with a command")
        for line in lines:
            if line.startswith("$ "):
                found.append(line[2:])
            elif line.startswith("> "):
                found[-1] += f"\n{line[2:]}"
    return found


def run(lines: list[str], folder: Path, environment: Mapping[str, str], password: str, seconds: float) -> Done:
    """Run commands in one bash, in `folder`, for at most `seconds`. password: the answer to each prompt."""
    script = folder / ".commands"
    script.write_text("\n".join(lines) + "\n")
    process, terminal = pty.fork()
    if process == 0:
        try:
            os.chdir(folder)
            os.execve("/bin/bash", ["bash", "-euv", "-o", "pipefail", str(script)], dict(environment))
        finally:
            os._exit(127)
    shown = b""
    deadline = time.monotonic() + seconds
    try:
        while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # a terminal whose last program has ended
                break
            if _PASSWORD.search(shown):
                os.write(terminal, f"{password}\n".encode())
                shown += b"\n"
        else:
            os.killpg(process, signal.SIGKILL)
    finally:
        _, status = os.waitpid(process, 0)
        os.close(terminal)
    return Done(os.waitstatus_to_exitcode(status), shown.decode(errors="replace"))

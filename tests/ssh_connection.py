"""An ssh connection to a sliver that stays open: a line is sent twice a second, and comes back."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINE = 0.5  # seconds between two lines


class Connection:
    """ssh: host and port of the sliver, as the API shows them. sent, answered: lines so far."""

    def __init__(self, ssh: Mapping[str, Any], key: Path) -> None:
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        target = ["-i", str(key), "-p", str(ssh["port"]), f"root@{ssh['host']}"]
        self._process = subprocess.Popen(
            ["ssh", *options, *target, "exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.sent, self.answered = 0, 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for one in self._threads:
            one.start()

    def _send(self) -> None:
        assert self._process.stdin is not None
        while not self._stop.wait(LINE):
            self._process.stdin.write(f"{self.sent}\n")
            self._process.stdin.flush()
            self.sent += 1
        self._process.stdin.close()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            assert line == f"{self.answered}\n"
            self.answered += 1

    def close(self) -> int:
        """Returns the exit status of ssh."""
        self._stop.set()
        for one in self._threads:
            one.join(60)
        with self._process as process:  # closes its pipes
            return process.wait(60)

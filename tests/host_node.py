"""The host itself as the node, for a production-like machine made for the tests and set up as documented.

`SLICEMGR_NO_BOX` marks such a machine. `SLICEMGR_TEST_IMAGES` is the path of the rows of the images on its pool (an
import inside an emulated machine would emulate the appliance in an emulation).
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import demo
from testbed import DATABASE, LOG_LINES, Node, eventually

ADDRESS = "192.0.2.10"
NO_BOX = "SLICEMGR_NO_BOX"
PRODUCTION = bool(os.environ.get(NO_BOX))  # this host is a node that was made for the tests


class Host:
    """The interface of a box for the host itself."""

    address, name = ADDRESS, "host"

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float = 60,
        input: str | None = None,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        environment = None if env is None else {**os.environ, **env}
        words = [str(word) for word in argv]
        return subprocess.run(
            words, input=input or "", capture_output=True, text=True, timeout=timeout, check=check, env=environment
        )

    def path(self, inside: str | Path) -> Path:
        return Path(inside)

    def problem(self) -> str:
        return ""

    def daemon(self, tag: str) -> int | None:
        """The main process of a unit of slicemgr; None if it does not run."""
        shown = self.run(["systemctl", "show", "-p", "MainPID", "--value", f"slicemgr-{tag}"], check=True).stdout
        return int(shown) or None


class HostNode(Node):
    """A node whose service runs by systemd units, with the methods that tests of a running service need."""

    def __init__(self) -> None:
        self.box: Any = Host()
        self.key = Path("/root/test_ed25519")
        self.type = "lxc"
        self.kept = set()

    def __enter__(self) -> Self:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self.key.unlink()
        self.key.with_suffix(".pub").unlink()

    def logs(self) -> dict[str, str]:
        units = [f"slicemgr-{tag}" for tag in ("agent", "web")]
        words = ["journalctl", "--no-pager", f"--lines={LOG_LINES}", "--unit"]
        return {unit: self.box.run([*words, unit]).stdout for unit in units}

    @property
    def database(self) -> Path:
        return Path(DATABASE)

    @property
    def url(self) -> str:
        return "http://127.0.0.1:8480"

    def start(self) -> None:
        """Wait for the units, and insert the images of the pool into the database."""
        eventually(lambda: self.box.daemon("web") and self.box.daemon("agent"), "the units run", 300)
        eventually(lambda: demo.answers(self.url), "the web process answers", 300)
        eventually(self.nodes, "the agent has announced the node", 300)
        for row in json.loads(Path(os.environ["SLICEMGR_TEST_IMAGES"]).read_text()):
            marks = ", ".join("?" * len(row))
            with closing(sqlite3.connect(DATABASE)) as database, database:
                columns = ", ".join(row)
                database.execute(f"insert or ignore into images ({columns}) values ({marks})", list(row.values()))

    def mend(self) -> None:
        """Wait until systemd has restarted the units."""
        eventually(lambda: demo.answers(self.url), "the web process answers", 300)

"""In place of systemctl in a node box: `boxed_units.py DIRECTORY WORDS...` starts and stops the daemons of the units.

DIRECTORY: of the box. Its pids and logs are those of `nodebox_box.Box.background`, so that a test finds the daemons.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import broker_server

BIN = Path(sys.executable).parent
SLICEMGR = "slicemgr-"
BROKER = "rabbitmq-server"
KNOWN = ("slicemgr-web", "slicemgr-agent", "slicemgr-signer", "slicemgr-hub", BROKER)
PATIENCE = 300.0  # seconds
HOME = Path("/var/lib/rabbitmq")


def name_of(unit: str) -> str:
    return unit.removesuffix(".service")


class Unit:
    def __init__(self, directory: Path, unit: str) -> None:
        self.name = name_of(unit)
        self.tag = self.name.removeprefix(SLICEMGR)
        self._pid, self._log = directory / "pids" / f"{self.tag}.pid", directory / "log" / f"{self.tag}.log"
        self._enabled = directory / "pids" / f"{self.tag}.enabled"

    @property
    def pid(self) -> int | None:
        try:
            pid = int(self._pid.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return None if state == "Z" else pid

    def start(self) -> None:
        """Start it unless it runs. The agent is waited for, as systemd does."""
        if self.pid is not None:
            return
        if self.name == BROKER:
            self._spawn(*self._broker())
            return
        command = [str(BIN / "slicemgr"), self.tag]
        if self.tag in ("web", "agent"):
            subprocess.run([command[0], "init"], check=True)
        if self.tag == "agent":
            self._start_agent(command)
        else:
            self._spawn(command, {})

    def _start_agent(self, command: list[str]) -> None:
        with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(f"{place}/notify")
            ready.settimeout(1)
            self._spawn(command, {"NOTIFY_SOCKET": f"{place}/notify"})
            end = time.monotonic() + PATIENCE
            while self.pid is not None and time.monotonic() < end:
                try:
                    if b"READY=1" in ready.recv(4096):
                        return
                except TimeoutError:
                    pass
        raise SystemExit(f"{self.name} does not start")

    def _broker(self) -> tuple[list[str], dict[str, str]]:
        """As Debian's unit starts it: with the files of the package. Its log is in the box."""
        log = Path("/run/rabbitmq")
        log.mkdir(exist_ok=True)
        for folder in (log, HOME):
            os.chown(folder, *ids())
        user = ["setpriv", f"--reuid={broker_server.USER}", f"--regid={broker_server.USER}", "--init-groups"]
        idle = "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2"
        environment = {"HOME": str(HOME), "RABBITMQ_LOG_BASE": str(log), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": idle}
        return [*user, str(broker_server.program())], environment

    def _spawn(self, command: list[str], environment: dict[str, str]) -> None:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **environment},
            )
        self._pid.write_text(f"{process.pid}\n")

    def stop(self) -> None:
        """Its whole session, as systemd ends the whole group."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + PATIENCE / 10
        while self.pid is not None and time.monotonic() < end:
            time.sleep(0.05)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        while Path(f"/proc/{pid}").exists() and self.pid is not None:
            time.sleep(0.05)

    def shown(self, name: str) -> str:
        values = {
            "ActiveState": "active" if self.pid is not None else "inactive",
            "UnitFileState": "enabled" if self._enabled.exists() else "disabled",
            "LoadState": "loaded" if self.name in KNOWN else "not-found",
        }
        return values[name]

    def enable(self) -> None:
        self._enabled.touch()

    def disable(self) -> None:
        self._enabled.unlink(missing_ok=True)


def ids() -> tuple[int, int]:
    import pwd

    found = pwd.getpwnam(broker_server.USER)
    return found.pw_uid, found.pw_gid


def main() -> None:
    directory, word, *rest = Path(sys.argv[1]), *sys.argv[2:]
    if word == "show":
        print(Unit(directory, rest[-1]).shown(rest[0].removeprefix("--property=")))
        return
    for unit in rest:
        if name_of(unit) in KNOWN:
            getattr(Unit(directory, unit), word)()


if __name__ == "__main__":
    main()

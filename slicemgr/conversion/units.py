"""Start and stop the services of this host: with systemctl, or with a program that understands the same words."""

from __future__ import annotations

from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed
from slicemgr.errors import Failed, invalid

SYSTEMCTL = "systemctl"
WEB, AGENT, SIGNER, HUB = (f"slicemgr-{name}.service" for name in ("web", "agent", "signer", "hub"))
BROKER = "rabbitmq-server.service"
EPMD = ("epmd.socket", "epmd.service")  # of Erlang, in which the broker is written
_TIMEOUT = 660.0  # seconds; RabbitMQ may take ten minutes by its unit


class Units:
    """program: systemctl, or another. Refused if it is systemctl and systemd does not run."""

    def __init__(self, program: str = SYSTEMCTL) -> None:
        if program == SYSTEMCTL and not Path("/run/systemd/system").is_dir():
            hint = "name a program that starts and stops the services, with the words of systemctl"
            raise invalid("--service-control", "systemd does not run here", hint)
        self._program = program

    def active(self, unit: str) -> bool:
        return self._property("ActiveState", unit) == "active"

    def enabled(self, unit: str) -> bool:
        return self._property("UnitFileState", unit) == "enabled"

    def known(self, unit: str) -> bool:
        return self._property("LoadState", unit) == "loaded"

    def start(self, *units: str) -> None:
        """Raises Failed, as the others do."""
        self._run("start", *units)

    def stop(self, *units: str) -> None:
        self._run("stop", *units)

    def enable(self, *units: str) -> None:
        self._run("enable", *units)

    def disable(self, *units: str) -> None:
        self._run("disable", *units)

    def reload(self) -> None:
        """Read the files of units again."""
        self._run("daemon-reload")

    def _property(self, name: str, unit: str) -> str:
        return self._run("show", f"--property={name}", "--value", unit).strip()

    def _run(self, *words: str) -> str:
        try:
            return command.run([self._program, *words], timeout=_TIMEOUT).decode(errors="replace")
        except CommandFailed as error:
            hint = f"see `journalctl -u {words[-1]}`" if self._program == SYSTEMCTL else ""
            raise Failed(f"{self._program} {' '.join(words)}: {error.stderr.strip()}", hint=hint) from error

"""The file in which the hub leaves the state of the broker, for `doctor` and `/metrics` on the same machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slicemgr.ipc import timed_file

VALID = 60.0  # seconds
MEMORY, DISK = "memory", "disk"  # resources whose alarms stop all messages


@dataclass(frozen=True, slots=True)
class BrokerState:
    """All sizes are in bytes. alarms: the resources of which it has too little. outdated: what is wrong with its
    settings. folder: of its rabbitmq.conf, "" if it is not known."""

    memory: int = 0
    memory_limit: int = 0
    disk_free: int = 0
    disk_limit: int = 0
    alarms: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    folder: str = ""

    def lacks(self) -> Sequence[str]:
        """Why it takes no messages, in words; empty if it does."""
        words = {
            MEMORY: f"{self.memory >> 20} of {self.memory_limit >> 20} MiB of memory are used",
            DISK: f"{self.disk_free >> 20} MiB of disk are free, and {self.disk_limit >> 20} are needed",
        }
        return [words[one] for one in self.alarms]

    def remedy(self) -> str:
        """How to change outdated settings."""
        return f"run `slicemgr broker-files {self.folder or 'FOLDER'} --update`, and restart RabbitMQ"


def write(path: Path, state: BrokerState) -> None:
    """Replace the file."""
    timed_file.write(path, json.dumps(dataclasses.asdict(state)), 0o644)


def read(path: Path) -> BrokerState | None:
    """None: not known now."""
    try:
        found = json.loads(timed_file.read(path, VALID))
        lists = {name: tuple(map(str, found[name])) for name in ("alarms", "outdated")}
        sizes = {name: int(found[name]) for name in ("memory", "memory_limit", "disk_free", "disk_limit")}
        alarms = tuple(one for one in lists["alarms"] if one in (MEMORY, DISK))
        return BrokerState(**sizes, alarms=alarms, outdated=lists["outdated"], folder=str(found["folder"]))
    except (ValueError, TypeError, KeyError):
        return None

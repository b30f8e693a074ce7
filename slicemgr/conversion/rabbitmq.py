"""RabbitMQ as Debian installs it: its files for a testbed, and what they replace."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

from slicemgr.certificates.private_files import replace
from slicemgr.conversion.kept_files import Facts, keep, put_back
from slicemgr.conversion.units import BROKER, EPMD, Units
from slicemgr.hub import broker_files

USER = "rabbitmq"
FOLDER = Path("/etc/slicemgr/rabbitmq")  # only root may change what is beside it
DATA = Path("/var/lib/rabbitmq")
_ENVIRONMENT = Path("/etc/rabbitmq/rabbitmq-env.conf")
_OTHERS = ("rabbitmq.conf", "advanced.config", "definitions.json")  # of an administrator, in the folder of the former
_PROGRAMS = Path("/usr/lib/rabbitmq/lib")
_DATABASE = DATA / "mnesia" / "slicemgr@localhost"
_EPMD_UNITS = (Path("/lib/systemd/system/epmd.socket"), Path("/etc/systemd/system/epmd.socket"))
EPMD_FILE = Path("/etc/systemd/system/epmd.socket.d/slicemgr.conf")
_EPMD_TEXT = "[Socket]\nListenStream=\nListenStream=127.0.0.1:4369\n"


def installed() -> bool:
    return any(_PROGRAMS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))


def configured() -> str:
    """The file with which RabbitMQ is configured for something else; "": none is."""
    found = [_ENVIRONMENT.with_name(name) for name in _OTHERS if _ENVIRONMENT.with_name(name).exists()]
    if _ENVIRONMENT.exists():
        lines = (line.strip() for line in _ENVIRONMENT.read_text(errors="replace").splitlines())
        found += [_ENVIRONMENT] if any(line and not line.startswith("#") for line in lines) else []
    return str(found[0]) if found else ""


def look(units: Units) -> Facts:
    """What `restore` needs."""
    return {
        "environment": keep(_ENVIRONMENT),
        "database": _DATABASE.exists(),
        "running": units.active(BROKER),
        "enabled": units.enabled(BROKER),
        "epmd": units.active(EPMD[0]),
    }


def configure(units: Units, facts: Facts) -> None:
    """Start the broker with the files in FOLDER, and Erlang's own ports on the loopback interface alone."""
    units.stop(BROKER)
    for path in (*FOLDER.iterdir(), FOLDER):
        shutil.chown(path, USER, USER)
    old = base64.b64decode((facts["environment"] or {"content": ""})["content"]).decode(errors="replace").rstrip()
    own = FOLDER / broker_files.ENVIRONMENT
    text = f"{old}\n[ ! -e {own} ] || . {own}\n".lstrip()
    replace(_ENVIRONMENT, text.encode(), 0, 0, 0o644)
    if any(one.exists() for one in _EPMD_UNITS):
        EPMD_FILE.parent.mkdir(exist_ok=True)
        EPMD_FILE.write_text(_EPMD_TEXT)
        units.reload()
        if facts["epmd"]:
            units.stop(*EPMD)
            units.start(EPMD[0])
    units.enable(BROKER)
    units.start(BROKER)


def restore(units: Units, facts: Facts) -> None:
    """Make RabbitMQ what it was before `configure`. May be repeated."""
    units.stop(BROKER)
    put_back(_ENVIRONMENT, facts["environment"])
    if EPMD_FILE.exists():
        EPMD_FILE.unlink()
        if not any(EPMD_FILE.parent.iterdir()):
            EPMD_FILE.parent.rmdir()
        units.reload()
        if facts["epmd"]:
            units.stop(*EPMD)
            units.start(EPMD[0])
    if not facts["database"]:
        for path in _DATABASE.parent.glob(f"{_DATABASE.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not facts["enabled"]:
        units.disable(BROKER)
    if facts["running"]:
        units.start(BROKER)

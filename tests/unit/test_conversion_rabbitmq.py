"""RabbitMQ gets the files of a testbed and, if the conversion fails, what it had before."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slicemgr.conversion import rabbitmq
from slicemgr.conversion.units import BROKER, Units
from slicemgr.errors import Failed, Refused

# Knows which units are active and enabled, and writes what it was asked.
SYSTEMCTL = """#!/bin/sh
cd {folder}
[ $1 = show ] || echo "$*" >> asked
case $1 in
show)
    case $2 in
    *ActiveState) [ -e $4.active ] && echo active || echo inactive ;;
    *UnitFileState) [ -e $4.enabled ] && echo enabled || echo disabled ;;
    esac ;;
start) touch $2.active; [ ! -e broken ] || {{ echo "no room" >&2; exit 1; }} ;;
stop) shift; for unit; do rm -f $unit.active; done ;;
enable) touch $2.enabled ;;
disable) rm -f $2.enabled ;;
esac
"""
COMMENTS = "# NODENAME=rabbit\n"


class Host:
    """Debian's files of RabbitMQ and of epmd below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.environment = folder / "rabbitmq/rabbitmq-env.conf"
        self.files, self.data = folder / "slicemgr/rabbitmq", folder / "data"
        self.drop_in = folder / "epmd.socket.d/slicemgr.conf"
        for path in (self.environment.parent, self.data, self.files.parent, folder / "units"):
            path.mkdir()
        self.environment.write_text(COMMENTS)
        self.environment.chmod(0o640)
        (folder / "epmd.socket").touch()
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL.format(folder=folder / "units"))
        program.chmod(0o755)
        self.units = Units(str(program))
        places = {"_ENVIRONMENT": self.environment, "FOLDER": self.files, "_DATABASE": self.data / "slicemgr@localhost"}
        epmd = {"EPMD_FILE": self.drop_in, "_EPMD_UNITS": (folder / "epmd.socket",)}
        for name, value in {**places, **epmd}.items():
            monkeypatch.setattr(rabbitmq, name, value)

    def state(self) -> dict[str, object]:
        paths = [one for one in self.folder.rglob("*") if one.name not in ("asked", "broken")]
        return {
            str(one.relative_to(self.folder)): (stat.S_IMODE(one.stat().st_mode), one.is_file() and one.read_bytes())
            for one in paths
        }

    def asked(self) -> list[str]:
        return (self.folder / "units/asked").read_text().splitlines()

    def configure(self) -> dict[str, object]:
        """As the conversion does it. Returns the facts."""
        facts = rabbitmq.look(self.units)
        self.files.mkdir(mode=0o700)
        (self.files / "rabbitmq-env.conf").write_text("x=1\n")
        rabbitmq.configure(self.units, facts)
        (self.data / "slicemgr@localhost").mkdir()
        (self.data / "slicemgr@localhost.pid").touch()
        return facts


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_it_gets_the_files_of_the_testbed(host: Host) -> None:
    host.configure()
    text = host.environment.read_text()
    assert text == f"{COMMENTS}[ ! -e {host.files}/rabbitmq-env.conf ] || . {host.files}/rabbitmq-env.conf\n"
    assert {one.owner() for one in (host.files, *host.files.iterdir())} == {rabbitmq.USER}
    assert host.drop_in.read_text() == "[Socket]\nListenStream=\nListenStream=127.0.0.1:4369\n"
    asked = host.asked()
    assert asked.index(f"stop {BROKER}") < asked.index("daemon-reload") < asked.index(f"start {BROKER}")


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("epmd", [False, True])
@pytest.mark.parametrize("existed", [False, True])
def test_everything_is_as_before(host: Host, running: bool, epmd: bool, existed: bool) -> None:
    """Also if the restore is repeated, or if it follows a part of the change."""
    units = host.folder / "units"
    if running:
        (units / f"{BROKER}.active").touch()
        (units / f"{BROKER}.enabled").touch()
    if epmd:
        (units / "epmd.socket.active").touch()
    if not existed:
        host.environment.unlink()
    before = host.state()
    (units / "broken").touch()
    facts = rabbitmq.look(host.units)
    host.files.mkdir(mode=0o700)
    with pytest.raises(Failed, match="no room"):
        rabbitmq.configure(host.units, facts)
    assert host.state() != before, "the control: something was changed"
    (units / "broken").unlink()
    for _ in range(2):
        rabbitmq.restore(host.units, facts)
        if host.files.exists():
            host.files.rmdir()
        assert host.state() == before
    host.configure()
    rabbitmq.restore(host.units, facts)
    (host.files / "rabbitmq-env.conf").unlink()
    host.files.rmdir()
    assert host.state() == before


def test_a_broker_for_something_else_is_noticed(host: Host) -> None:
    assert rabbitmq.configured() == ""
    (host.environment.parent / "rabbitmq.conf").touch()
    assert rabbitmq.configured().endswith("rabbitmq.conf")
    (host.environment.parent / "rabbitmq.conf").unlink()
    host.environment.write_text(f"{COMMENTS}NODENAME=other\n")
    assert rabbitmq.configured() == str(host.environment)


def test_without_systemd_a_program_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    with pytest.raises(Refused) as caught:
        Units()
    assert caught.value.field == "--service-control"

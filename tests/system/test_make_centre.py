"""A machine with SQLite becomes the centre of a testbed by one command, or stays what it was, while its slivers run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boxed_nginx
import boxed_units
import demo
import pytest
from boxed_node import BoxedNode
from nodebox_box import Box
from nodebox_switch import Switch
from ssh_connection import Connection
from test_postgres import PASSWORD, PLACE, PostgresNode
from testbed import BIN, IMAGE, PORT, STARTED, eventually

from slicemgr.client import Client
from slicemgr.conversion import steps

pytestmark = pytest.mark.long
FILES = Path("/etc/slicemgr/rabbitmq")
SETTINGS, CONTROL = Path("/etc/slicemgr/slicemgr.toml"), Path("/etc/slicemgr/control")
HUB_USER = 64128  # a UID that no account uses
FAULTY = Path(__file__).with_name("faulty_conversion.py")
HERE = Path(__file__).parents[2]
TABLES = "SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema()"
SERVICES = ("web", "agent", "signer", "hub", "rabbitmq-server")
LIST = """\
cd /
find etc/rabbitmq etc/slicemgr etc/systemd/system/epmd.socket.d var/lib/rabbitmq/mnesia -printf '%p %u %m\\n' | sort
find var/lib/slicemgr -maxdepth 1 ! -name 'acceleration*' -printf '%p %u %m\\n' | sort
cat etc/rabbitmq/rabbitmq-env.conf etc/slicemgr/slicemgr.toml
"""
ROWS = {
    "users": "SELECT name FROM users ORDER BY name",
    "tokens": "SELECT hash FROM tokens ORDER BY hash",
    "slices": "SELECT id, name FROM slices ORDER BY name",
    "slivers": "SELECT id, address, serial, desired, host_key FROM slivers ORDER BY id",
    "ports": "SELECT count(*) FROM ports",
    "authorities": "SELECT count(*) FROM authorities",
}


class Machine(PostgresNode):
    """A node in a box at a switch. switch_address: at which other nodes reach it."""

    switch_address = ""

    def prepare(self, switch: Switch) -> None:
        """Everything that the command needs, beside the service that runs."""
        self.switch_address = self.box.plug(switch)
        settings = self.box.path(SETTINGS)
        more = f'[hub]\nuser = "{HUB_USER}:{HUB_USER}" # a number\n'
        text = settings.read_text().replace("[web]\n", f'[web]\nurl = "https://{self.switch_address}"\n')
        settings.write_text(f"# The settings of this machine.\n{text}\n{more}")
        program = self.box.path(CONTROL)
        paths = f"{HERE}/tests:{HERE}/tools"
        units = f"{sys.executable} {boxed_units.__file__} {self.box.directory}"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {units} "$@"\n')
        program.chmod(0o755)
        self.start_server()
        self.sh(self.documented("runuser "))

    @property
    def database_url(self) -> str:
        return f"postgresql://slicemgr@/slicemgr?host={PLACE}"

    def make_centre(self, *words: str, faulty: str = "") -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(FAULTY), faulty] if faulty else [str(BIN / "slicemgr")]
        argv = [*program, "make-centre", *words, "--service-control", str(CONTROL)]
        return self.box.run(argv, timeout=1200, env={"PGPASSWORD": PASSWORD})

    @property
    def words(self) -> tuple[str, ...]:
        return ("--database", self.database_url, "--broker", f"{self.switch_address}:5671")

    def state(self) -> dict[str, Any]:
        """What a conversion that fails leaves as it was."""
        files = self.box.run(["sh", "-c", LIST], check=True).stdout
        assert self.sh(f"stat -c %a {SETTINGS}")
        return {
            "files": [line for line in files.splitlines() if ".erlang.cookie" not in line],
            "tables": self.sh(f"PGPASSWORD={PASSWORD} psql -qtA -h {PLACE} -U slicemgr slicemgr -c '{TABLES}'"),
            "services": {name: self.box.daemon(name) is not None for name in SERVICES},
            "enabled": sorted(one.name for one in (self.box.directory / "pids").glob("*.enabled")),
            "rows": {name: self.rows(query) for name, query in ROWS.items()},
        }

    @property
    def authority(self) -> Path:
        """A copy of the certificate of the authority, for a node that joins."""
        copy = demo.RUN / f"{self.box.name}.pem"
        copy.write_bytes(self.box.path(FILES / "authority.pem").read_bytes())
        return copy

    def start_nginx(self) -> None:
        names = {
            "/etc/ssl/slicemgr/fullchain.pem": str(FILES / "certificate.pem"),
            "/etc/ssl/slicemgr/privkey.pem": str(FILES / "key.pem"),
            "testbed.example": self.switch_address,
            "127.0.0.1:8480": f"{self.box.address}:{PORT}",
        }
        boxed_nginx.start(self.box, SETTINGS.parent, names)


class AsCentre:
    """The machine, as a node that joins needs it."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self.authority = machine, machine.authority

    def slicectl(self, *words: str) -> str:
        return self._machine.ok(*words)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    made = Switch(f"mc-switch-{demo.CLONE}")
    made.destroy()
    made.make()
    yield made
    made.destroy()


@pytest.fixture(scope="module")
def machine(switch: Switch) -> Iterator[Machine]:
    with Machine("mc") as made:
        made.prepare(switch)
        made.start()
        made.import_recipe(IMAGE)
        made.create("kept")
        yield made


def connection_to(machine: Machine, name: str) -> Connection:
    return Connection(machine.show(name)["slivers"][0]["ssh"], machine.key)


def test_the_checks_name_what_is_missing_and_change_nothing(machine: Machine) -> None:
    before = machine.state()
    done = machine.make_centre(*machine.words, "--check")
    assert done.returncode == 0 and "FAIL" not in done.stdout, done.stdout + done.stderr
    machine.box.path(FILES).mkdir()
    wrong = ("--database", f"postgresql://slicemgr@/postgres?host={PLACE}/none", "--broker", "x:5671")
    done = machine.make_centre(*wrong)
    machine.box.path(FILES).rmdir()
    assert done.returncode != 0
    failed = {line.split(":")[0].removeprefix("FAIL ") for line in done.stdout.splitlines() if "FAIL" in line}
    assert failed == {"database", "RabbitMQ"}, done.stdout
    assert machine.state() == before


@pytest.mark.parametrize("name", [step.name for step in steps.steps()])
def test_a_failure_of_any_step_leaves_the_machine_as_it_was(machine: Machine, name: str) -> None:
    """The sliver, too, and an open connection to it."""
    before, started = machine.state(), machine.inside("kept", STARTED)
    connection = connection_to(machine, "kept")
    done = machine.make_centre(*machine.words, faulty=name)
    assert connection.close() == 0 and connection.answered == connection.sent > 0
    assert done.returncode != 0 and f"injected after {name}" in done.stderr, done.stdout + done.stderr
    assert "this machine works as before" in done.stderr, done.stdout + done.stderr
    assert machine.state() == before
    assert machine.inside("kept", STARTED) == started
    assert [one["name"] for one in json.loads(machine.ok("list", "-f", "json"))] == ["kept"]


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("authority", "rm -r /var/lib/slicemgr/authority"),
        ("broker files", f"rm -r {FILES} /var/lib/slicemgr/hub"),
        ("enable", f"{CONTROL} disable slicemgr-signer slicemgr-hub"),
    ],
)
def test_without_an_undo_the_difference_is_found(machine: Machine, name: str, clean: str) -> None:
    """The control of the test above."""
    before = machine.state()
    assert machine.make_centre(*machine.words, faulty=f"keep-{name}").returncode != 0
    assert machine.state() != before
    machine.sh(clean)
    assert machine.state() == before


def test_slivers_run_through_the_conversion_and_everything_stays(machine: Machine) -> None:
    token = json.loads(machine.ok("token", "create", "before", "-f", "json"))
    before, shown = machine.state()["rows"], machine.show("kept")
    started, events = machine.inside("kept", STARTED), json.loads(machine.ok("event", "list", "-f", "json"))
    connection = connection_to(machine, "kept")
    eventually(lambda: connection.answered > 2, "the connection is open", 60)
    done = machine.make_centre(*machine.words)
    assert done.returncode == 0, done.stdout + done.stderr
    during = connection.sent
    eventually(lambda: connection.answered > during + 2, "it is still open", 60)
    assert connection.close() == 0 and connection.answered == connection.sent

    machine.moved = True
    after = machine.state()
    assert after["services"] == dict.fromkeys(SERVICES, True)
    assert after["rows"] == {**before, "authorities": [(1,)]}
    assert after["enabled"] == ["hub.enabled", "rabbitmq-server.enabled", "signer.enabled"]
    text = machine.box.path(SETTINGS).read_text()
    assert text.startswith("# The settings of this machine.\n") and PASSWORD in text
    assert oct(machine.box.path(SETTINGS).stat().st_mode)[-3:] == "640"
    assert Path(f"/proc/{machine.box.daemon('hub')}").stat().st_uid == HUB_USER
    assert not machine.box.path("/var/lib/slicemgr/make-centre.json").exists()

    with Client(machine.url, str(token["token"])) as client:
        assert [one["name"] for one in client.slices.list()] == ["kept"]
        [now] = client.slices.list()
    assert now["expires_at"] == shown["expires_at"]
    assert machine.show("kept")["slivers"][0]["ssh"] == shown["slivers"][0]["ssh"]
    assert machine.inside("kept", STARTED) == started
    ids = {one["id"] for one in json.loads(machine.ok("event", "list", "--limit", "1000", "-f", "json"))}
    assert {one["id"] for one in events} <= ids
    machine.create("after")
    machine.ok("delete", "after")
    machine.agrees()
    again = machine.make_centre(*machine.words)
    assert again.returncode != 0 and "store.url" in again.stdout, "it is a centre already"


def test_another_node_joins(machine: Machine, switch: Switch) -> None:
    machine.start_nginx()
    box = Box(f"mc-n2-{demo.CLONE}")
    box.destroy()
    node = BoxedNode(box, switch, "n2", "b")
    try:
        node.start(AsCentre(machine))  # type: ignore[arg-type]

        def states() -> dict[str, str]:
            return {one["name"]: one["state"] for one in json.loads(machine.ok("node", "list", "-f", "json"))}

        eventually(lambda: states() == {"test": "active", "n2": "active"}, "both are active", 300)
        made = machine.create("far", "--node", "n2")
        assert [one["node"] for one in made["slivers"]] == ["n2"]
        assert machine.inside("far", "hostname") == "far-0\n"
        machine.ok("delete", "far")
    finally:
        box.destroy()

"""A testbed moves to PostgreSQL by the documented commands while its slivers run."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import postgres_server
import prodhost
import pytest
from testbed import BIN, IMAGE, STARTED, Node, eventually

PLACE = Path("/run/postgres-test")
PASSWORD = "p-4711"
ACCESS = "local all postgres peer\nlocal all all scram-sha-256\n"
INSTALL = prodhost.INSTALL.read_text()
ROWS = """\
import json, sys
from slicemgr import config, store
with store.open(config.load()) as opened, opened.read() as c:
    print(json.dumps([list(row) for row in c.exec_driver_sql(sys.argv[1])]))
"""


class PostgresNode(Node):
    """A node with a PostgreSQL server in its box."""

    moved = False

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if not self.moved:
            return super().rows(query)
        told = self.box.run([sys.executable, "-c", ROWS, query], check=True).stdout
        return [tuple(row) for row in json.loads(told)]

    def sh(self, script: str) -> str:
        """Run a script in the box as an administrator. It must succeed. Returns the output."""
        environment = f"export PATH={BIN}:$PATH PGHOST={PLACE}; cd /\n"
        done = self.box.run(["sh", "-e", "-c", environment + script], timeout=120)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_server(self) -> None:
        data, user = PLACE / "data", postgres_server.USER
        if self.box.run(["test", "-e", str(data)]).returncode != 0:
            init = postgres_server.init_words(data, PLACE / "password")
            self.sh(f"install -d -o {user} -g {user} {PLACE} && echo {PASSWORD} > {PLACE}/password")
            self.sh(f"{shlex.join(init)} && printf '{ACCESS}' > {data}/pg_hba.conf")
        words = [*postgres_server.unprivileged(), *postgres_server.server_words(data, PLACE)]
        self.box.background("postgres", words)
        ready = [str(postgres_server.programs() / "pg_isready"), "-h", str(PLACE)]
        eventually(lambda: self.box.run(ready).returncode == 0, "PostgreSQL answers", 30)

    def documented(self, beginning: str) -> str:
        """The documented commands that begin so, with this box's address and user in them."""
        commands = [one for one in prodhost.commands_below(INSTALL, "PostgreSQL") if one.startswith(beginning)]
        assert commands, f"docs/how-to/install.md has no command {beginning!r}"
        text = "\n".join(commands).replace("SECRET", PASSWORD).replace("root:slicemgr", "root:65534")
        return text.replace("@127.0.0.1/slicemgr", f"@/slicemgr?host={PLACE}")

    def move(self) -> str:
        """Move from SQLite to PostgreSQL. Returns the output of the copy."""
        self.start_server()
        self.sh(self.documented("runuser "))
        self.kill("agent")
        self.kill("web")
        self.sh(self.documented("slicemgr db upgrade"))
        told = self.sh(self.documented("PGPASSWORD="))
        for beginning in ("printf ", "chown ", "chmod "):
            self.sh(self.documented(beginning))
        self.moved = True
        self.start_web()
        self.start_agent()
        return told


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[PostgresNode, str, str]]:
    """A node that has moved with a slice `kept`, the start time of its sliver, and the output of the copy."""
    with PostgresNode("pg") as made:
        made.start()
        made.import_recipe(IMAGE)
        made.create("gone")
        made.ok("delete", "gone")
        made.create("kept")
        started = made.inside("kept", STARTED)
        yield made, started, made.move()


@pytest.fixture
def moved(bench: tuple[PostgresNode, str, str]) -> Iterator[PostgresNode]:
    """After a test, only `kept` remains, and the host agrees with the rows."""
    made = bench[0]
    yield made
    if made.box.daemon("postgres") is None:
        made.start_server()
    made.mend()
    if others := set(made.slices()) - {"kept"}:
        made.ok("delete", *others)
    made.agrees()


@pytest.mark.long
def test_slivers_run_on_and_numbers_go_on(bench: tuple[PostgresNode, str, str], moved: PostgresNode) -> None:
    _, started, told = bench
    assert "store.url" in told
    assert {"1 slices", "1 slivers", "20 ports"} <= {" ".join(line.split()) for line in told.splitlines()}
    assert moved.inside("kept", STARTED) == started
    assert {one["kind"] for one in json.loads(moved.ok("op", "list", "-f", "json"))} >= {"create", "delete"}
    moved.create("after")
    assert sorted(moved.rows("SELECT serial FROM slivers")) == [(2,), (3,)], "1 was the deleted sliver's"


@pytest.mark.long
def test_nothing_is_read_from_or_written_to_the_file_any_more(moved: PostgresNode) -> None:
    moved.box.run(["rm", "-r", "/var/lib/slicemgr/db"], check=True)
    moved.kill("web")
    moved.kill("agent")
    moved.box.run([BIN / "slicemgr", "init"], check=True)
    moved.start_web()
    moved.start_agent()
    assert moved.slices() == ["kept"]
    assert moved.box.run(["ls", "/var/lib/slicemgr/db"]).stdout == "web.key\n", "no database"


def test_a_slice_from_request_to_deletion(moved: PostgresNode) -> None:
    made = moved.create("exp", "--count", "2")
    assert made["state"] == "running"
    moved.agrees()
    moved.inside("exp/1", "echo precious > /root/data; sync")
    moved.ok("stop", "exp")
    assert moved.show("exp")["state"] == "stopped"
    moved.agrees()
    moved.ok("start", "exp")
    assert moved.inside("exp/1", "cat /root/data") == "precious\n"
    moved.ok("delete", "exp")
    assert moved.slicectl("show", "exp").returncode == 3
    moved.agrees()


def test_web_and_agent_are_killed_in_the_middle_of_a_create(moved: PostgresNode) -> None:
    moved.ok("create", "exp", "--count", "4", "--no-wait", *moved.wishes())
    moved.kill("agent")
    moved.kill("web")
    moved.start_web()
    moved.start_agent()
    moved.ok("wait", "exp", "--timeout", "60s")
    assert moved.inside("exp/3", "id -u") == "0\n"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGQUIT])
def test_the_server_goes_and_comes(moved: PostgresNode, how: signal.Signals) -> None:
    """Slivers keep running, requests get an error, and earlier requests are executed afterwards."""
    moved.ok("create", "exp", "--count", "4", "--no-wait", *moved.wishes())
    moved.box.signal_daemon("postgres", how)
    told = moved.slicectl("list")
    assert told.returncode == 7
    assert "PostgreSQL does not answer" in told.stderr
    assert PASSWORD not in told.stderr
    assert moved.box.daemon("agent") is not None
    moved.start_server()
    moved.ok("wait", "exp", "--timeout", "90s")
    assert moved.inside("exp/3", "id -u") == "0\n"
    assert PASSWORD not in moved.log()


def test_no_log_of_the_service_has_the_password(moved: PostgresNode) -> None:
    for name in ("web", "agent"):
        assert PASSWORD not in (moved.box.directory / "log" / f"{name}.log").read_text()

"""After the documented removal of a centre, PostgreSQL and RabbitMQ have nothing of it. It follows test_removal.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

from centre_host import LONG, listening, reachable


def output(*words: str, seconds: float = 300) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=seconds).stdout


def test_the_database_is_gone() -> None:
    query = "select datname from pg_database union select rolname from pg_roles where rolname !~ '^pg_'"
    names = output("runuser", "-u", "postgres", "--", "psql", "-qtA", "-c", query).split()
    assert set(names) == {"postgres", "template0", "template1"}


def test_the_broker_has_debians_settings_again() -> None:
    lines = Path("/etc/rabbitmq/rabbitmq-env.conf").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    assert not Path("/etc/systemd/system/epmd.socket.d").exists()
    output("systemctl", "is-active", "rabbitmq-server")
    assert output("rabbitmqctl", "--quiet", "--no-table-headers", "list_vhosts", seconds=LONG).split() == ["/"]
    assert {4369, 5672} <= reachable(listening(output("ss", "-Htlnp"))).keys(), "as before the machine was a centre"

"""A container with the minimal init starts sshd for each connection, and gives port 22 to a daemon of the tenant."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from testbed import Node, eventually

from slicemgr import ssh_banner

LISTENER = "sshd: [listener]\n"
TITLE = "tr '\\0' ' ' </proc/$(cat /run/sshd.pid)/cmdline | sed 's/ *$//'; echo"


def listener(node: Node) -> str:
    """The title of the process that has port 22; an empty line while it is refused, as when the listener makes way."""
    return node.ssh("exp", TITLE).stdout.strip() + "\n"


def first_words(address: str, port: int) -> str:
    """What a new connection gets first."""
    with socket.create_connection((address, port), 5) as connection:
        return connection.recv(64).decode()


def test_sshd_runs_only_with_connections(node: Node) -> None:
    port = node.create("exp")["slivers"][0]["ssh"]["port"]
    assert listener(node) == LISTENER
    assert node.inside("exp", "ss -Hltn sport = 22 | wc -l") == "2\n"  # IPv4 and IPv6
    assert node.inside("exp", "grep -h ^PPid /proc/$(pgrep -f '^sshd: root')/status") == "PPid:\t" + node.inside(
        "exp", "cat /run/sshd.pid"
    )
    node.inside("exp", "echo 'PermitRootLogin no' >/etc/ssh/sshd_config.d/mine.conf")
    assert node.ssh("exp", "true").returncode == 255  # without a restart
    assert ssh_banner.answers(str(node.box.address), port)


def test_connections_that_do_not_log_in_are_bounded(node: Node) -> None:
    port = node.create("exp")["slivers"][0]["ssh"]["port"]
    address = str(node.box.address)
    with ExitStack() as stack:
        for _ in range(130):
            stack.enter_context(socket.create_connection((address, port), 5))
        eventually(lambda: first_words(address, port).startswith("Exceeded MaxStartups"), "some are refused")
    eventually(lambda: node.ssh("exp", "true").returncode == 0, "they have ended")


def test_sessions_do_not_count_as_such(node: Node) -> None:
    """The control of the bound: more sessions than may wait for a login."""
    node.create("exp")
    with ThreadPoolExecutor(14) as threads:
        sessions = []
        for number in range(14):
            stay = f"touch /tmp/{number}.in; until test -e /tmp/end; do sleep 1; done"
            sessions.append(threads.submit(node.ssh, "exp", stay))
            node.inside("exp", f"until test -e /tmp/{number}.in; do sleep 0.1; done")
        assert [node.ssh("exp", "true").returncode for _ in range(10)] == [0] * 10
        node.inside("exp", "touch /tmp/end")
        assert [one.result().returncode for one in sessions] == [0] * 14


def test_a_daemon_takes_the_port_over(node: Node) -> None:
    node.create("exp")
    node.inside("exp", "sshd -t; cat /usr/sbin/sshd >/dev/null")
    eventually(lambda: listener(node) == LISTENER, "it listens again")
    node.inside("exp", "service ssh restart")
    eventually(lambda: "/usr/sbin/sshd" in listener(node), "the daemon has the port")
    assert node.inside("exp", "pgrep -c -f '^sshd: .listener.$' || true") == "0\n"
    node.ok("restart", "exp")
    assert listener(node) == LISTENER


def test_settings_of_the_daemon_start_it(node: Node) -> None:
    node.create("exp")
    node.inside("exp", "echo 'MaxStartups 5' >/etc/ssh/sshd_config.d/mine.conf")
    node.ok("restart", "exp")
    assert "/usr/sbin/sshd" in listener(node)

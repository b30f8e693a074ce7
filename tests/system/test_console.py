"""The console of a sliver through slicectl, web and agent: the sliver continues after any end of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

import pytest
from terminal import Terminal
from testbed import BIN, DATABASE, PORT, Node, eventually

from slicemgr.errors import Code
from slicemgr.ipc import websocket
from slicemgr.wire import Console

LEAVE = "\x1d"


def attach(node: Node, target: str) -> Terminal:
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    terminal = Terminal([str(BIN / "slicectl"), "console", target], environment)
    terminal.heard("Ctrl-] to detach")
    return terminal


def prompt(terminal: Terminal, mark: str = "ready") -> None:
    """Wait for a shell that answers; the typed text does not contain the mark."""
    terminal.type(f"\recho {mark[0]}''{mark[1:]}\r")
    terminal.see(mark)


def open_consoles(node: Node) -> int:
    """Terminals that the agent has open."""
    count = 0
    for descriptor in Path(f"/proc/{node.box.daemon('agent')}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith("/dev/pts/")
    return count


def ticket(node: Node, name: str = "exp") -> Console:
    with node.client() as client:
        return cast(Console, client.connection.call("POST", f"/slices/{name}/console", {"sliver": 0}))


def knock(node: Node, token: str, **headers: str) -> tuple[int, str]:
    """HTTP status and body of a request for a console, as a browser makes it."""
    connection = http.client.HTTPConnection(node.box.address, PORT, timeout=30)
    sent = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": f"{websocket.PROTOCOL}, token.{token}",
        **headers,
    }
    with closing(connection):
        connection.request("GET", "/api/v1/console", headers=sent)
        answer = connection.getresponse()
        return answer.status, "" if answer.status == 101 else answer.read().decode()


def test_a_shell_at_the_console(node: Node) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        assert open_consoles(node) == 1
        terminal.type("echo $((6 * 7)) $(hostname)\r")
        terminal.see("42 exp-0")
        assert not termios.tcgetattr(terminal.slave)[3] & termios.ECHO
        terminal.type("sh -c 'echo in''side; exec sleep 1000'\r")
        terminal.see("inside")  # before that, the shell is what ^C would reach
        terminal.type("\x03")  # for the sliver, not for slicectl
        prompt(terminal, "again")
        terminal.type(LEAVE)
        assert terminal.end()[0] == 0
        assert termios.tcgetattr(terminal.slave)[3] & termios.ECHO
    assert "sliver 0" in node.ok("event", "list", "--slice", "exp")
    eventually(lambda: open_consoles(node) == 0, "the agent has let go")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_as_before_when_slicectl_is_ended(node: Node, number: signal.Signals) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        terminal.process.send_signal(number)
        assert terminal.end()[0] == 128 + number
        assert termios.tcgetattr(terminal.slave)[3] & termios.ECHO


def test_without_a_terminal_what_is_piped_in_is_typed(node: Node) -> None:
    node.create("exp", "--count", "2")
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    words = [str(BIN / "slicectl"), "console", "exp/1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("uname; hostname\n")
        process.stdin.flush()
        said = ""
        for line in process.stdout:  # the input stays open until then: a second without output after its end is the end
            said += line
            if line == "exp-1\n":
                break
        complaint = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "Linux\nexp-1\n" in said
    assert complaint == "slicectl: connected to exp/1\n"


def test_a_client_that_dies_leaves_the_shell_as_it_is(node: Node) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        terminal.type("mark=kept\r")
        prompt(terminal)
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait(10)
    eventually(lambda: open_consoles(node) == 0, "the agent has let go")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        terminal.type("echo $mark\r")
        terminal.see("kept")
    assert node.inside("exp", "id -u") == "0\n"


def test_who_comes_later_takes_over(node: Node) -> None:
    node.create("exp")
    with attach(node, "exp") as first:
        prompt(first)
        with attach(node, "exp") as second:
            status, said = first.end()
            assert status == Code.CONFLICT.exit_status
            assert "admin opened the console of exp/0" in said
            prompt(second)


def test_ten_at_once(node: Node) -> None:
    node.create("exp", "--count", "10")
    with ExitStack() as stack:
        open_ = [stack.enter_context(attach(node, f"exp/{index}")) for index in range(10)]
        for terminal in open_:
            terminal.type("\rhostname\r")
        for index, terminal in enumerate(open_):
            terminal.see(f"exp-{index}\r")
        for terminal in open_:
            terminal.type(LEAVE)
        assert [terminal.end()[0] for terminal in open_] == [0] * 10


def test_a_token_opens_one_console_once(node: Node) -> None:
    node.create("exp")
    token = ticket(node)["token"]
    assert knock(node, token)[0] == 101
    status, told = knock(node, token)
    assert (status, json.loads(told)["code"]) == (401, "unauthenticated")
    assert knock(node, "x" * 43)[0] == 401


def test_a_token_expires(node: Node) -> None:
    node.create("exp")
    token = ticket(node)["token"]
    script = (
        "import sqlite3, sys\n"
        f"with sqlite3.connect('{DATABASE}') as db:\n"
        "    db.execute(\"update consoles set expires_at = datetime(expires_at, '-31 seconds') || '.000000'\")"
    )
    node.box.run([sys.executable, "-c", script], check=True)
    assert knock(node, token)[0] == 401
    assert knock(node, ticket(node)["token"])[0] == 101


def test_a_page_of_another_site_is_refused(node: Node) -> None:
    node.create("exp")
    token = ticket(node)["token"]
    for origin in ("https://evil.example", "null", f"http://{node.box.address}:{PORT + 1}"):
        status, told = knock(node, token, Origin=origin)
        assert (status, json.loads(told)["code"]) == (403, "denied")
    assert knock(node, token, Origin=node.url)[0] == 101  # the refused ones have not used it up


def test_no_token_is_in_a_log(node: Node) -> None:
    node.create("exp")
    token = ticket(node)["token"]
    assert knock(node, token)[0] == 101
    logs = node.box.directory / "log"
    opened = "console of exp/0 opened by admin"
    eventually(lambda: opened in (logs / "agent.log").read_text(), "the agent logs the console")
    assert all(token not in log.read_text() for log in logs.iterdir())


def test_deleting_the_slice_ends_the_console_with_a_reason(node: Node) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        node.ok("delete", "exp")
        status, said = terminal.end()
    assert status == Code.CONFLICT.exit_status
    assert "slicectl: exp/0 has stopped\n" in said


@pytest.mark.parametrize(("number", "message"), [(signal.SIGTERM, "is stopping"), (signal.SIGKILL, "was lost")])
def test_an_agent_that_ends_ends_its_consoles(node: Node, number: signal.Signals, message: str) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        node.box.signal_daemon("agent", number)
        status, said = terminal.end()
    assert status == Code.UNAVAILABLE.exit_status
    assert f"the agent of the node {message}" in said
    assert "does not respond" in node.slicectl("console", "exp").stderr
    node.start_agent()
    with attach(node, "exp") as terminal:
        prompt(terminal)


def test_a_restart_of_libvirtd_is_not_noticed(node: Node) -> None:
    node.create("exp")
    with attach(node, "exp") as terminal:
        prompt(terminal)
        node.box.libvirtd("restart")
        prompt(terminal, "still")


def test_what_does_not_run_has_no_console(node: Node) -> None:
    node.create("exp")
    for target, status, message in (
        ("exp/1", 3, "no sliver 1"),
        ("default/exp/x", 2, "is not the name of a sliver"),
        ("exp/x", 3, "no slice 'x'"),
        ("nope", 3, "no slice"),
    ):
        done = node.slicectl("console", target)
        assert done.returncode == status and message in done.stderr
    token = ticket(node)["token"]
    node.ok("stop", "exp")
    assert knock(node, token)[0] == 409  # requested while it ran
    done = node.slicectl("console", "exp")
    assert done.returncode == 4 and "exp/0 is not running (`slicectl start exp`)" in done.stderr


def test_a_client_that_reads_nothing_and_a_sliver_that_reads_nothing_hold_up_nobody(node: Node) -> None:
    node.create("loud")
    node.create("deaf")
    with attach(node, "loud") as loud, attach(node, "deaf") as deaf:
        for terminal in (loud, deaf):
            prompt(terminal)
        loud.type("yes\r")
        loud.see("y\r\ny\r\n")
        loud.process.send_signal(signal.SIGSTOP)
        deaf.type("sleep 1000\r")
        deaf.see("sleep 1000\r\n")
        deaf.paste("true\r" * 500_000)
        node.create("other")
        with attach(node, "other") as other:
            prompt(other)
        with attach(node, "loud") as again:  # takes over from the connection that is not notified
            again.type("\x03")
            prompt(again)
        deaf.type(LEAVE)
        assert deaf.end()[0] == 0
    node.inside("deaf", "pkill -x sleep")
    with attach(node, "deaf") as again:
        prompt(again)
    eventually(lambda: open_consoles(node) == 0, "the agent has let go")


def test_strangers_at_the_agents_socket_get_nothing_and_hold_up_nobody(node: Node) -> None:
    node.create("exp")
    path = str(node.box.path("/run/slicemgr/console.sock"))
    with ExitStack() as stack:
        for _ in range(10):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            stranger.connect(path)
        stranger.send(b"\xff" * 200)
        stranger.settimeout(30)
        assert b"unauthenticated" in stranger.recv(4096)
        with attach(node, "exp") as terminal:
            prompt(terminal)
    eventually(lambda: open_consoles(node) == 0, "the agent has let go")

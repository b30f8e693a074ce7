"""The measurements of the thesis inside a running sliver: a command, the first response of a web server, a ping.

A command is run over ssh through the sliver's own port, including the connection and login. The web server is reached
through the next port.
"""

from __future__ import annotations

import http.client
import re
import shlex
import threading
import time
from collections.abc import Sequence

from slicemgr import wire
from slicemgr.bench.frame import slivers
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed

Times = dict[str, list[float]]

_HELLO = "Hello World"
_LONGEST = 120.0  # timeout of a command in seconds
_PINGS = 5
_PING_SECONDS = 4
_GATEWAY = "$(ip -4 route show default | sed -n '1s/.* via \\([^ ]*\\).*/\\1/p')"
_RTT = re.compile(r"time[=<]([0-9.]+) ms")
# A minimal server that runs in every image: it sends the same response to each client, one after the other.
_SERVER = """
import socket
with socket.create_server(("", {port})) as server:
    while True:
        with server.accept()[0] as client:
            client.recv(4096)
            client.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello")
"""


def measure(words: Sequence[str], sliver: wire.Sliver, target: str, stop: threading.Event) -> Times:
    """Seconds of `exec`, `launch`, `response` and each `ping` that was answered.

    words: the command prefix that runs a command in the sliver. target: the address that it pings, "" for its gateway.
    Raises Failed, and Over if `stop` is set.
    """
    port = sliver["ports"]["first"] + 1
    begun = time.monotonic()
    said = slivers.inside(words, [shlex.join(["/bin/echo", _HELLO])], _LONGEST).decode(errors="replace").strip()
    ended = time.monotonic()
    if said != _HELLO:
        raise Failed(f"a command in {sliver['id']} printed {said[:80]!r} instead of {_HELLO!r}")
    slivers.inside(words, [server(port)], _LONGEST)
    launched = time.monotonic()
    _respond(sliver["ssh"]["host"], port, stop)
    answered = time.monotonic()
    return {
        "exec": [ended - begun],
        "launch": [launched - ended],
        "response": [answered - launched],
        "ping": pings(words, target),
    }


def server(port: int) -> str:
    """A line for the shell of the sliver that starts the web server and does not wait for it."""
    program = shlex.join(["python3", "-ISc", _SERVER.format(port=port)])
    return f"setsid {program} </dev/null >/dev/null 2>&1 &"


def _respond(host: str, port: int, stop: threading.Event) -> None:
    end = time.monotonic() + _LONGEST
    while not _answered(host, port):
        slivers.check(stop)
        if time.monotonic() > end:
            hint = "the image needs python3"
            raise Failed(f"no HTTP response from {host}:{port} within {_LONGEST:g} s", hint=hint, code=Code.TIMEOUT)
        time.sleep(0.002)


def _answered(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read() == b"hello"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def pings(words: Sequence[str], target: str) -> list[float]:
    """Seconds of each echo; [] if there is none, for example because a firewall in front of the target drops them.

    target: "" for the gateway, the only address of the node that its slivers may ping.
    """
    whom = shlex.quote(target) if target else _GATEWAY
    asked = f"ping -n -c {_PINGS} -i 0.2 -w {_PING_SECONDS} {whom}"
    try:
        said = command.run([*words, f"{asked} || true"], timeout=_LONGEST)
    except command.CommandFailed:
        return []
    return round_trips(said.decode(errors="replace"))


def round_trips(said: str) -> list[float]:
    """The round-trip times in the output of ping, in seconds."""
    return [float(one) / 1000 for one in _RTT.findall(said)]

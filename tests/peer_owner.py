"""Keep a real sandbox for peers until a line is read or the process is killed: `POOL`. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from slicemgr.bench.peers import namespaces, systems
from slicemgr.bench.peers.namespaces import Sandbox
from slicemgr.drivers import command

PREFIX = "bench-0123abcd-"
_BANNER = (
    "import socket\ns = socket.create_server(('0.0.0.0', 22))\nwhile True: s.accept()[0].sendall(b'SSH-2.0-owner')"
)
_LOOK = """
touch /etc/peer-was-here /var/lib/peer-was-here /run/peer-was-here /dev/shm/peer-was-here
ls /sys/class/net | tr '\\n' ' '; echo
cat /proc/sys/net/ipv4/ip_forward
ls /run | tr '\\n' ' '; echo
test -e "$0/bases" && echo pool
ls /sys/fs/cgroup | head -1
"""


class ByHand(systems.Nspawn):
    """A process that sends an ssh banner in a separate network, without a container."""

    def _process(self, one: systems.One, root: Path) -> list[str]:
        return [*self.within(one), sys.executable, "-c", _BANNER]

    def _snapshot(self, target: Path) -> None:
        target.mkdir()

    def _drop(self, target: Path) -> None:
        target.rmdir()


def main() -> None:
    pool = Path(sys.argv[1])
    with Sandbox(pool, PREFIX, 300) as sandbox:
        lines = sandbox.run(["sh", "-c", _LOOK, str(pool)]).decode().splitlines()
        sandbox.start("loop", ["sleep", "4321"])
        loop = int((sandbox.directory / "loop.pid").read_text())
        sandbox.start("short", ["sleep", "0"])
        forwarded = _forwarded(sandbox)
        outside = command.run(["sh", "-c", "setsid sleep 4322 > /dev/null 2>&1 & echo $!"], timeout=10)
        found = {"lines": lines, "loop": loop, "outside": int(outside), "forwarded": forwarded, "after": _here()}
        print(json.dumps(found), flush=True)
        sys.stdin.readline()
    namespaces.remove(pool, PREFIX)


def _here() -> list[str]:
    """The files that were written in the sandbox and also exist outside."""
    there = ("/etc", "/var/lib", "/run", "/dev/shm")
    return [one for one in there if Path(one, "peer-was-here").exists()]


def _forwarded(sandbox: Sandbox) -> list[str]:
    """The banners of the lowest port with a container, and after its deletion."""
    work = systems.Work(1 << 28, 5)
    system, one = ByHand(sandbox, work), work.one(PREFIX, 0)
    (sandbox.directory / "pattern").mkdir()
    system.begin()
    system.create(one)
    said = [_banner(one.first, tries=1000)]
    system.delete(one)
    return [*said, _banner(one.first, tries=100)]


def _banner(port: int, tries: int) -> str:
    program = (
        "import socket,sys,time\nfor _ in range(int(sys.argv[3])):\n try:\n"
        "  c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)\n"
        "  print(c.recv(20).decode())\n  break\n except OSError:\n  time.sleep(0.02)"
    )
    argv = [sys.executable, "-c", program, namespaces.PEER_SIDE, str(port), str(tries)]
    return command.run(argv, timeout=60).decode().strip()


if __name__ == "__main__":
    main()

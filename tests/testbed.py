"""A node in a box, driven as its users do: by slicectl and ssh from outside, by virsh and signals from inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import demo
from nodebox_box import Box

from slicemgr import names
from slicemgr.client import Client

BIN = Path(sys.executable).parent
IMAGE = "debian-12"
IMAGES = {"lxc": IMAGE, "kvm": "debian-12-small"}
DRIVERS = ("lxc:///system", "qemu:///system")
PORT = 8480
SETTINGS = """\
[node]
name = "test"
address = "{address}"

[web]
host = "{address}"
port = {port}
user = "65534:65534"
cookie = "plain"

[agent]
reconcile = "2s"
stop_grace = "5s"
ssh_wait = "60s"
boot_wait = "240s"
{more}
"""


def ensure_image(recipe: str = IMAGE) -> Path:
    """A recipe's disk image, shared with the demo."""
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    return demo.ensure_image(recipe)


def eventually(check: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of `check`; fails if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return value


class Node:
    """A box with web and agent as daemons of their own, so that each can be killed."""

    def __init__(self, name: str, more: str = "", pool_size: str | None = None) -> None:
        self.box = Box(f"{name}-{demo.CLONE}")
        self._more = more
        self._pool_size = pool_size
        self.key = demo.RUN / f"{name}_ed25519"
        self.kind = "lxc"  # what the next slices are

    def __enter__(self) -> Self:
        self.box.destroy()
        self.box.make(link="host", pool_size=self._pool_size)
        settings = SETTINGS.format(address=self.box.address, port=PORT, more=self._more)
        self.box.run(["sh", "-c", "cat > /etc/slicemgr/slicemgr.toml"], input=settings, check=True)
        if not self.key.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *exc: object) -> None:
        self.box.destroy()

    # the service

    def start(self) -> None:
        """init, web, agent; returns when both are ready."""
        self.box.run([BIN / "slicemgr", "init"], check=True)
        self.start_web()
        self.start_agent()
        eventually(lambda: json.loads(self.ok("node", "list", "-f", "json")), "the agent has announced the node")

    def start_web(self) -> None:
        self.box.background("web", [str(BIN / "slicemgr"), "web"])
        eventually(lambda: demo.answers(self.url), "the web process answers")

    def start_agent(self, program: tuple[str, ...] = (str(BIN / "slicemgr"), "agent")) -> None:
        since = self.log().count("is ready")
        self.box.background("agent", list(program))
        eventually(lambda: self.log().count("is ready") > since, "the agent is ready")

    def kill(self, daemon: str) -> None:
        """SIGKILL. gunicorn's worker outlives its master for a moment: that is waited for."""
        self.box.signal_daemon(daemon, signal.SIGKILL)
        if daemon == "web":
            eventually(lambda: not demo.answers(self.url), "nothing answers any more", 150)

    def mend(self) -> None:
        """Start what a test left killed."""
        if self.box.problem():
            self.box.make(link="host")
        if self.box.daemon("web") is None:
            self.start_web()
        if self.box.daemon("agent") is None:
            self.start_agent()

    def log(self) -> str:
        path = self.box.directory / "log" / "agent.log"
        return path.read_text() if path.exists() else ""

    @property
    def url(self) -> str:
        return f"http://{self.box.address}:{PORT}"

    def token(self) -> str:
        text = self.box.run(["cat", "/run/slicemgr/client.json"], check=True).stdout
        return str(json.loads(text)["token"])

    def client(self) -> Client:
        return Client(self.url, self.token())

    # its users

    def slicectl(self, *words: str | Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLICEMGR_URL": self.url, "SLICEMGR_TOKEN": self.token()}
        argv = [str(BIN / "slicectl"), *map(str, words)]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, env=environment, stdin=subprocess.DEVNULL
        )

    def ok(self, *words: str | Path, timeout: float = 240) -> str:
        done = self.slicectl(*words, timeout=timeout)
        assert done.returncode == 0, f"slicectl {' '.join(map(str, words))}: {done.stderr}{done.stdout}"
        return done.stdout

    def wishes(self) -> tuple[str, ...]:
        """What a request of `kind` says beside the name. Machines: the recipe that starts in seconds."""
        sizes = ("--boot", "direct", "--memory", "192M", "--disk", "2G") if self.kind == "kvm" else ()
        return ("--type", self.kind, "--image", IMAGES[self.kind], "--ssh-key", f"{self.key}.pub", *sizes)

    def create(self, name: str, *options: str) -> dict[str, Any]:
        """A slice that can be logged into. options: as on the command line; they come last, so they win."""
        self.ok("create", name, *self.wishes(), *options)
        return self.show(name)

    def ensure_machines(self) -> None:
        """Import the small image, and wait until the agent knows how machines run here."""
        names = {one["name"] for one in json.loads(self.ok("image", "list", "-f", "json"))}
        if IMAGES["kvm"] not in names:
            self.ok("image", "import", ensure_image(IMAGES["kvm"]), "--name", IMAGES["kvm"], timeout=500)
        eventually(self.runs_machines, "the agent has found out how machines run", 120)

    def runs_machines(self) -> bool:
        """Whether the agent knows how."""
        return bool(json.loads(self.ok("node", "list", "-f", "json"))[0]["facts"]["kinds"]["kvm"])

    def show(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ok("show", name, "-f", "json"))
        return shown

    def ssh(self, target: str, command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return self.slicectl("ssh", "-i", self.key, target, "--", command, timeout=timeout)

    def inside(self, target: str, command: str, timeout: float = 60) -> str:
        """What a command that must succeed prints in a sliver."""
        done = self.ssh(target, command, timeout)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def delete_all(self) -> None:
        slices = [one["name"] for one in json.loads(self.ok("list", "-f", "json"))]
        if slices:
            self.slicectl("delete", *slices)
        eventually(lambda: json.loads(self.ok("list", "-f", "json")) == [], "every slice is gone")

    # what is there, and what should be

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the database says, whether the service runs or not."""
        script = (
            "import json, sqlite3, sys\n"
            "rows = sqlite3.connect('/var/lib/slicemgr/db/slicemgr.db').execute(sys.argv[1]).fetchall()\n"
            "print(json.dumps(rows))"
        )
        told = self.box.run([sys.executable, "-c", script, query], check=True).stdout
        return [tuple(row) for row in json.loads(told)]

    def host(self) -> dict[str, set[str]]:
        """Everything on the host that carries our mark, by kind, as sliver ids."""
        lists = (self.box.run(["virsh", "-c", driver, "list", "--name"], check=True).stdout for driver in DRIVERS)
        domains = [name for one in lists for name in one.split()]
        links = self.box.run(["ip", "-o", "link"], check=True).stdout
        rules = "".join(self.box.run([f"iptables-{kind}-save"]).stdout for kind in ("legacy", "nft"))
        groups = self.box.run(["btrfs", "qgroup", "show", "--raw", "/var/lib/slicemgr/pool"]).stdout
        return {
            "domains": set(filter(None, map(names.sliver_of_domain, domains))),
            "links": set(
                filter(
                    None,
                    (names.sliver_of_link(line.split()[1].split("@")[0].rstrip(":")) for line in links.splitlines()),
                )
            ),
            "shapers": set(
                filter(
                    None,
                    (names.sliver_of_shaper(line.split()[1].split("@")[0].rstrip(":")) for line in links.splitlines()),
                )
            ),
            "directories": self._names("/var/lib/slicemgr/pool/slivers"),
            "launch files": {one.removeprefix("sm-") for one in self._names("/run/slicemgr/launch")},
            "marks": {one.removeprefix("sm-").rpartition(".")[0] for one in self._names("/run/slicemgr/settled")},
            "pids groups": {one.removeprefix("sm-") for one in self._cgroups()},
            "groups": {line.split()[0] for line in groups.splitlines() if line.startswith("1/")},
            "addresses": {
                word.partition(":")[0]
                for line in rules.splitlines()
                if "--to-destination" in line
                for word in [line.split("--to-destination ")[1].split()[0]]
            },
        }

    def _names(self, directory: str) -> set[str]:
        return set(self.box.run(["ls", "-A", directory]).stdout.split())

    def simple_quotas(self) -> bool:
        checks = {one["name"]: one["detail"] for one in json.loads(self.slicectl("doctor", "-f", "json").stdout)}
        return "simple" in checks["disk quota"]

    def _cgroup_v1(self) -> bool:
        return self.box.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).returncode != 0

    def _cgroups(self) -> set[str]:
        return set(
            self.box.run(["sh", "-c", "cd /sys/fs/cgroup/pids/slicemgr 2>/dev/null && ls -d sm-*"]).stdout.split()
        )

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Where the host has something else than the rows name; {} is right."""
        self.box.run(["btrfs", "filesystem", "sync", "/var/lib/slicemgr/pool"])  # or the cleaner sleeps up to 30 s
        rows = self.rows(
            "select s.id, serial, address, phase, desired, net_out, kind from slivers s join slices l on l.id = s.slice"
        )
        have = self.host()
        every = {row[0] for row in rows}
        running = {row[0] for row in rows if row[3] in ("running", "paused") and row[4] in ("running", "paused")}
        containers = running & {row[0] for row in rows if row[6] == "lxc"}
        wanted = {
            "domains": running,
            "links": running,
            "shapers": {row[0] for row in rows if row[5] is not None} & running,
            "directories": every,
            "launch files": containers,
            "marks": running,
            "pids groups": containers if self._cgroup_v1() else set(),
            "groups": {f"1/{row[1]}" for row in rows} if self.simple_quotas() else set(),
            "addresses": {row[2] for row in rows},
        }
        return {kind: (have[kind] - want, want - have[kind]) for kind, want in wanted.items() if have[kind] != want}

    def agrees(self, seconds: float = 30) -> None:
        """The one invariant: host and database name the same things. Quota groups and links end a little later."""
        last: list[dict[str, tuple[Any, Any]]] = [{}]

        def look() -> bool:
            last[0] = self.differences()
            return not last[0]

        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, f"(too much, missing) on the host: {last[0]}"
            time.sleep(0.5)

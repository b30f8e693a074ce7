"""A node in a box for tests: used by slicectl and ssh from outside, and by virsh and signals from inside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import demo
from nodebox_box import Box
from nodebox_linux import locked

from slicemgr import names, wire
from slicemgr.client import Client

BIN = Path(sys.executable).parent
IMAGE = "debian-12"
IMAGES = {"lxc": IMAGE, "kvm": "debian-12-small"}
DRIVERS = ("lxc:///system", "qemu:///system")
DATABASE = "/var/lib/slicemgr/db/slicemgr.db"
POOL = Path("/var/lib/slicemgr/pool")
IMAGES_DIR = Path("/var/lib/slicemgr/images")
BASES = demo.RUN / "bases"  # by recipe: the base of its image, made by the present version of the importer
IMPORTER = ("slicemgr/agent", "slicemgr/drivers")  # sources that affect an import
LOG_LINES = 60  # lines of each log in the report of a failure
PORT = 8480
# Lists domains, links, rules and quota groups. The sync wakes the cleaner of btrfs, which sleeps up to 30 s.
LOOK = f"""\
btrfs filesystem sync /var/lib/slicemgr/pool > /dev/null
for driver in {" ".join(DRIVERS)}; do virsh -c $driver list --name || exit; done
echo --
ip -o link || exit
echo --
iptables-legacy-save
iptables-nft-save
echo --
btrfs qgroup show --raw /var/lib/slicemgr/pool
exit 0
"""
SETTINGS = """\
[node]
name = "test"
address = "{address}"

[web]
host = "{address}"
port = {port}
user = "65534:65534"
cookie = "plain"

[record]
interval = "1s"

[agent]
reconcile = "1s"
stop_grace = "5s"
ssh_wait = "60s"
boot_wait = "600s"

[spares]
keep = {spares}
{more}
"""


def ensure_image(recipe: str = IMAGE) -> Path:
    """A recipe's disk image, shared with the demo."""
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    return demo.ensure_image(recipe)


READY = "is ready"  # a line of the log of each start of an agent
STARTED = "cut -d' ' -f22 /proc/1/stat"  # the start time of the sliver's init, in clock ticks


def eventually(check: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """Wait for the first true value of `check` and return it; fails if there is none within `seconds`.

    The default is generous: the load of the host must not fail a test, and a check that succeeds does not wait for it.
    """
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return value


def _importer() -> str:
    """A digest of the sources that affect an import."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in IMPORTER for file in (demo.REPO / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Node:
    """A box with web and agent as separate daemons, so that each can be killed."""

    def __init__(self, name: str, more: str = "", pool_size: str | None = None, spares: tuple[str, ...] = ()) -> None:
        self.box = Box(f"{name}-{demo.CLONE}")
        self._more = more
        self._spares = list(spares)
        self._pool_size = pool_size
        self.key = demo.RUN / f"{name}_ed25519"
        self.type = "lxc"  # the type of the next slices
        self.kept: set[str] = set()  # slices that tests share, which are not deleted at the end of a test

    def __enter__(self) -> Self:
        self.box.destroy()
        self.box.make(link="host", pool_size=self._pool_size)
        settings = SETTINGS.format(
            address=self.box.address, port=PORT, more=self._more, spares=json.dumps(self._spares)
        )
        self.box.run(["sh", "-c", "cat > /etc/slicemgr/slicemgr.toml"], input=settings, check=True)
        self._ensure_key()
        return self

    def __exit__(self, *exc: object) -> None:
        self.box.destroy()

    def _ensure_key(self) -> None:
        if not self.key.exists():
            demo.RUN.mkdir(mode=0o700, exist_ok=True)
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)

    # the service

    def start(self) -> None:
        """Run init, web and agent; returns when both daemons are ready."""
        self.box.run([BIN / "slicemgr", "init"], check=True)
        self.start_web()
        self.start_agent()
        eventually(self.nodes, "the agent has announced the node")

    def start_web(self) -> None:
        self.box.background("web", [str(BIN / "slicemgr"), "web"])
        eventually(lambda: demo.answers(self.url), "the web process answers")

    def start_agent(self, program: tuple[str, ...] = (str(BIN / "slicemgr"), "agent")) -> None:
        """Returns when the agent is ready; fails at once if it ends before."""
        since = self.log().count(READY)
        self.box.background("agent", list(program))

        def ready() -> bool:
            ended = self.box.daemon("agent") is None  # before the log is read: it may be ready and then end
            found = self.log().count(READY) > since
            assert found or not ended, f"the agent ended before it was ready:\n{self.log()[-4000:]}"
            return found

        eventually(ready, "the agent is ready")

    def kill(self, daemon: str) -> None:
        """Send SIGKILL to a daemon. For web, wait until gunicorn's worker has ended, shortly after its master."""
        self.box.signal_daemon(daemon, signal.SIGKILL)
        if daemon == "web":
            eventually(lambda: not demo.answers(self.url), "nothing answers any more", 150)

    @contextmanager
    def other_settings(self, change: Callable[[str], str]) -> Iterator[None]:
        """Within the context, the agent runs with changed settings."""
        file = self.box.path("/etc/slicemgr/slicemgr.toml")
        before = file.read_text()
        self._run_agent_by(file, change(before))
        try:
            yield
        finally:
            self._run_agent_by(file, before)

    def _run_agent_by(self, file: Path, settings: str) -> None:
        file.write_text(settings)
        self.kill("agent")
        self.start_agent()

    def mend(self) -> None:
        """Start the daemons that a test killed."""
        if not self.box.facts().healthy:
            self.box.make(link="host")
        if self.box.daemon("web") is None:
            self.start_web()
        if self.box.daemon("agent") is None:
            self.start_agent()

    def log(self) -> str:
        path = self.box.directory / "log" / "agent.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> dict[str, str]:
        """The last lines of each log of the box and of libvirt's newest logs of containers, by file name."""
        of_libvirt = sorted(self.box.path("/var/log/libvirt/lxc").glob("*.log"), key=lambda file: file.stat().st_mtime)
        files = [*sorted((self.box.directory / "log").glob("*.log")), *of_libvirt[-2:]]
        texts = {file.name: file.read_text(errors="replace").splitlines()[-LOG_LINES:] for file in files}
        return {name: "\n".join(lines) for name, lines in texts.items() if lines}

    @property
    def url(self) -> str:
        return f"http://{self.box.address}:{PORT}"

    def token(self) -> str:
        return str(json.loads(self.box.path("/run/slicemgr/client.json").read_text())["token"])

    def client(self) -> Client:
        return Client(self.url, self.token())

    # frequent queries of tests, which do not start a program

    def nodes(self) -> list[wire.Node]:
        with self.client() as admin:
            return admin.nodes.list()

    def slices(self) -> list[str]:
        """The names of all slices except the kept ones."""
        with self.client() as admin:
            return [one["name"] for one in admin.slices.list() if one["name"] not in self.kept]

    def show(self, name: str) -> dict[str, Any]:
        with self.client() as admin:
            return {**admin.slices.get(name)}

    # users

    def slicectl(self, *words: str | Path, timeout: float = 660) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLICEMGR_URL": self.url, "SLICEMGR_TOKEN": self.token()}
        argv = [str(BIN / "slicectl"), *map(str, words)]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, env=environment, stdin=subprocess.DEVNULL
        )

    def ok(self, *words: str | Path, timeout: float = 660) -> str:
        done = self.slicectl(*words, timeout=timeout)
        assert done.returncode == 0, f"slicectl {' '.join(map(str, words))}: {done.stderr}{done.stdout}"
        return done.stdout

    def wishes(self) -> tuple[str, ...]:
        """The options of a request of `type`. For machines: the recipe that starts within seconds."""
        sizes = ("--boot", "direct", "--memory", "192M", "--disk", "2G") if self.type == "kvm" else ()
        return ("--type", self.type, "--image", IMAGES[self.type], "--ssh-key", f"{self.key}.pub", *sizes)

    def create(self, name: str, *options: str) -> dict[str, Any]:
        """Create a slice and wait until it accepts logins. options: of the command line; they override the defaults."""
        self.ok("create", name, *self.wishes(), *options)
        return self.show(name)

    def import_recipe(self, recipe: str, *, really: bool = False) -> None:
        """Import the image of a recipe. Unless `really`, use the base of an earlier import, if any.

        That import may be of another node or of an earlier run, but of the same image by the same version. Only one
        node imports at a time, so that the halves of the suite do not both import the same image.
        """
        image = ensure_image(recipe)
        with image.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        kept = BASES / recipe / f"{sha256}-{_importer()}"
        with locked(kept.parent):
            if kept.exists() and not really:
                self._take_base(kept, sha256)
            self.ok("image", "import", image, "--name", recipe, timeout=1000)
            if not kept.exists():
                self._keep_base(kept, sha256)

    def _keep_base(self, kept: Path, sha256: str) -> None:
        for older in kept.parent.iterdir():
            older.unlink()
        shutil.copy(self.box.path(IMAGES_DIR / f"{sha256}.json"), kept.with_suffix(".json"))
        new = kept.with_suffix(f".{self.box.name}")
        self.box.run(["btrfs", "send", "--quiet", "-f", new, POOL / "bases" / sha256], check=True, timeout=300)
        new.rename(kept)

    def _take_base(self, kept: Path, sha256: str) -> None:
        """Create the state of an import after a restart of the agent, in which the base already exists."""
        self.box.run(["btrfs", "receive", "--quiet", "-f", kept, POOL / "bases"], check=True, timeout=300)
        images = self.box.path(IMAGES_DIR)
        images.mkdir(mode=0o711, exist_ok=True)
        shutil.copy(kept.with_suffix(".json"), images / f"{sha256}.json")

    def ensure_machines(self) -> None:
        """Import the small image, and wait until the agent has determined how machines run here."""
        with self.client() as admin:
            there = {one["name"] for one in admin.images.list()}
        if IMAGES["kvm"] not in there:
            self.import_recipe(IMAGES["kvm"])
        self.await_machines()

    def await_machines(self) -> None:
        """Wait until the agent has determined how machines run here."""
        eventually(self.runs_machines, "the agent has found out how machines run", 300)

    def runs_machines(self) -> bool:
        """Whether the agent has determined how machines run here."""
        facts: dict[str, Any] = self.nodes()[0]["facts"]
        return bool(facts["kinds"]["kvm"])

    def ssh(self, target: str, command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return self.slicectl("ssh", "-i", self.key, target, "--", command, timeout=timeout)

    def inside(self, target: str, command: str, timeout: float = 300) -> str:
        """The output of a command in a sliver, which must succeed. timeout: seconds."""
        done = self.ssh(target, command, timeout)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def delete_all(self) -> None:
        if slices := self.slices():
            self.slicectl("delete", *slices)
        eventually(lambda: not self.slices(), "every slice is gone")

    # actual and expected state

    @property
    def database(self) -> Path:
        """The path of the box's database on the host: SQLite would resolve one below /proc/PID/root to the host's."""
        return self.box.directory / "root" / DATABASE.strip("/")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The result of a query of the database, also while the service does not run."""
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(query).fetchall()

    def host(self) -> dict[str, set[str]]:
        """All objects of slicemgr on the host, by kind, as sliver IDs."""
        output = self.box.run(["sh", "-c", LOOK], check=True, timeout=300).stdout
        domains, links, rules, groups = (part.splitlines() for part in output.split("--\n"))
        devices = [line.split()[1].split("@")[0].rstrip(":") for line in links]
        return {
            "domains": set(filter(None, map(names.sliver_of_domain, domains))),
            "links": set(filter(None, map(names.sliver_of_link, devices))),
            "shapers": set(filter(None, map(names.sliver_of_shaper, devices))),
            "directories": self._names("/var/lib/slicemgr/pool/slivers"),
            "snapshots": self._snapshots(),
            "launch files": {one.removeprefix("sm-") for one in self._names("/run/slicemgr/launch")},
            "marks": {one.removeprefix("sm-").rpartition(".")[0] for one in self._names("/run/slicemgr/settled")},
            "pids groups": {
                one.removeprefix("sm-") for one in self._names("/sys/fs/cgroup/pids/slicemgr") if one.startswith("sm-")
            },
            "groups": {line.split()[0] for line in groups if line.startswith("1/")},
            "addresses": {
                word.partition(":")[0]
                for line in rules
                if "--to-destination" in line
                for word in [line.split("--to-destination ")[1].split()[0]]
            },
        }

    def _names(self, directory: str) -> set[str]:
        path = self.box.path(directory)
        return {one.name for one in path.iterdir()} if path.exists() else set()

    def _snapshots(self) -> set[str]:
        """The snapshots as SLIVER/SNAPSHOT, and roots that were replaced."""
        slivers = self.box.path("/var/lib/slicemgr/pool/slivers")
        found = [*slivers.glob("*/snapshots/*"), *slivers.glob("*/root.new")]
        return {str(one.relative_to(slivers)).replace("/snapshots/", "/") for one in found}

    @cached_property
    def simple_quotas(self) -> bool:
        checks = {one["name"]: one["detail"] for one in json.loads(self.slicectl("doctor", "-f", "json").stdout)}
        return "simple" in checks["disk quota"]

    def _cgroup_v1(self) -> bool:
        return not self.box.path("/sys/fs/cgroup/cgroup.controllers").exists()

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The differences between the objects of the host and the rows, by kind; {} if there are none."""
        rows = self.rows(
            "select s.id, serial, address, phase, desired, net_out, coalesce(l.kind, p.type) from slivers s "
            "left join slices l on l.id = s.slice left join spares p on p.sliver = s.id"
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
            "snapshots": {
                f"{row[0]}/{row[1]}"
                for row in self.rows("select sliver, snapshot from sliver_snapshots where made_at is not null")
            },
            "launch files": containers,
            "marks": running,
            "pids groups": containers if self._cgroup_v1() else set(),
            "groups": {f"1/{row[1]}" for row in rows} if self.simple_quotas else set(),
            "addresses": {row[2] for row in rows},
        }
        return {kind: (have[kind] - want, want - have[kind]) for kind, want in wanted.items() if have[kind] != want}

    def agrees(self, seconds: float = 120) -> None:
        """Wait until host and database have the same objects; quota groups and links are deleted a little later."""
        last: list[dict[str, tuple[Any, Any]]] = [{}]

        def look() -> bool:
            last[0] = self.differences()
            return not last[0]

        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, f"(too much, missing) on the host: {last[0]}"
            time.sleep(0.5)

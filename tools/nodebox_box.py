"""A box: a private node on any Linux with root, which is created, entered, rebooted and removed without host changes.

Files of a box, below its directory (default /var/tmp/slicemgr-boxes/NAME):
  box.json    the requested settings and the assigned addresses; state.json: the running processes
  pool.img    the btrfs pool, mounted in the box only
  root/       bound over the host's directories in the box (/var/lib/slicemgr, /etc/libvirt, …); survives a reboot
  upper/      the changes of the box in /etc and /var/lib
  log/ pids/  of the daemons started in the background
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import nodebox_cgroups as cgroups
import nodebox_keeper as keeper
import nodebox_libvirt as libvirt
import nodebox_network as network
from nodebox_linux import (
    CLONE_NEWCGROUP,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    BoxError,
    Process,
    command,
    detach,
    locked,
    loop_files,
    raise_file_limit,
    setns,
    start_time,
    wait_until,
    write_json,
)
from nodebox_switch import Cable, Switch

BOXES = Path("/var/tmp/slicemgr-boxes")
PROGRAM = Path(__file__).with_name("nodebox")
LINKS = ("host", "outside", "none")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SIZE = re.compile(r"(\d+)([MGT])")
_HIDDEN = (Path("/run"), *map(Path, keeper.OVERLAID))  # the box hides these directories of the host
_SMALLEST_POOL = 128 << 20


def pool_bytes(text: str) -> int:
    """The number of bytes in a text such as `512M` or `64G`. Raises BoxError."""
    match = _SIZE.fullmatch(text)
    size = int(match[1]) << {"M": 20, "G": 30, "T": 40}[match[2]] if match else 0
    if size < _SMALLEST_POOL:
        raise BoxError(f"pool size {text!r}: write it as 512M or 64G, at least 128M")
    return size


@dataclass(frozen=True, slots=True)
class Lan:
    """A veth to another box, with the same name in both."""

    peer: str
    device: str
    block: str
    first: bool  # this box has the lower address


@dataclass(frozen=True, slots=True)
class Spec:
    """The requested settings and the assigned addresses. They survive a reboot."""

    name: str
    link: str = "host"
    pool_size: str = "64G"
    libvirt: bool = True
    uplink: str = ""  # the /30 of the link
    lans: tuple[Lan, ...] = ()
    cables: tuple[Cable, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The running processes. members, outside_members: cgroup directories for processes in the box or outside."""

    keeper: Process
    members: tuple[str, ...]
    outside: Process | None = None
    outside_members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The output of `nodebox show`. Addresses are "" without a link."""

    name: str
    directory: str
    healthy: bool
    problem: str
    link: str
    address: str
    gateway: str
    device: str
    keeper: int | None
    outside: int | None
    libvirtd: int | None
    lans: dict[str, str] = field(default_factory=dict)
    cables: dict[str, str] = field(default_factory=dict)  # the address at each switch


def _write(box: Box, **changes: Any) -> None:
    """Change the settings of a box."""
    write_json(box.directory / "box.json", dataclasses.asdict(dataclasses.replace(box.spec, **changes)))


def names() -> list[str]:
    return sorted(path.name for path in BOXES.iterdir()) if BOXES.exists() else []


class Box:
    """One box, by name. Every method may be called from any process of root on the host."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise BoxError(f"name {name!r}: up to 32 of a-z, 0-9 and -, neither first nor last a -")
        self.name = name

    # state

    @property
    def directory(self) -> Path:
        """The directory of the box's files, with symbolic links resolved."""
        return (BOXES / self.name).resolve()

    @property
    def exists(self) -> bool:
        return (self.directory / "box.json").exists()

    @property
    def spec(self) -> Spec:
        try:
            raw = json.loads((self.directory / "box.json").read_text())
        except FileNotFoundError as error:
            raise BoxError(f"there is no box {self.name!r}: nodebox make {self.name}") from error
        known = {name: raw[name] for name in Spec.__dataclass_fields__ if name in raw}  # it may be of a newer version
        cables = tuple(Cable(**cable) for cable in raw.get("cables", ()))
        return Spec(**{**known, "lans": tuple(Lan(**lan) for lan in raw["lans"]), "cables": cables})

    @property
    def state(self) -> State | None:
        """The running processes as recorded at their start; None if none were started."""
        try:
            raw = json.loads((self.directory / "state.json").read_text())
        except FileNotFoundError:
            return None
        return State(
            keeper=Process(**raw["keeper"]),
            members=tuple(raw["members"]),
            outside=Process(**raw["outside"]) if raw["outside"] else None,
            outside_members=tuple(raw["outside_members"]),
        )

    @property
    def address(self) -> str:
        """The address of the box on its uplink; "" without one."""
        return str(network.ends(network.parse_block(self.spec.uplink))[1]) if self.spec.uplink else ""

    @property
    def gateway(self) -> str:
        """The address at the far end of the uplink: the host's or the outside namespace's."""
        return str(network.ends(network.parse_block(self.spec.uplink))[0]) if self.spec.uplink else ""

    @property
    def prefix(self) -> list[str]:
        """The command prefix that runs a command in the box."""
        return [str(PROGRAM), "enter", self.name, "--"]

    @property
    def outside_prefix(self) -> list[str]:
        return [str(PROGRAM), "outside", self.name, "--"]

    def path(self, inside: str | Path) -> Path:
        """The path on the host of a path in the running box."""
        return Path(f"/proc/{self._running().keeper.pid}/root") / str(inside).lstrip("/")

    def _running(self) -> State:
        state = self.state
        if state is None or not state.keeper.alive:
            raise BoxError(f"box {self.name!r} does not run: nodebox make {self.name}")
        return state

    def problem(self) -> str:
        """The reason why the box must be started again; "" if there is none."""
        spec, state = self.spec, self.state
        if state is None or not state.keeper.alive:
            return "its keeper is gone"
        if not all(Path(member).is_dir() for member in state.members):
            return "its cgroups are gone"
        proc = Path(f"/proc/{state.keeper.pid}")
        if f" {keeper.POOL} " not in (proc / "mountinfo").read_text():
            return "its pool is not mounted"
        if spec.link != "none" and " eth0:" not in (proc / "net/dev").read_text():
            return "its uplink is gone"
        if spec.link == "outside" and (state.outside is None or not state.outside.alive):
            return "its outside namespace is gone"
        return ""

    def facts(self) -> Facts:
        spec, state = self.spec, self.state
        problem = self.problem()
        daemon = self.daemon("libvirtd")
        if not problem and spec.libvirt and daemon is None:
            problem = "libvirtd does not run"
        return Facts(
            name=self.name,
            directory=str(self.directory),
            healthy=not problem,
            problem=problem,
            link=spec.link,
            address=self.address,
            gateway=self.gateway,
            device=network.host_device(self.name) if spec.link == "host" else "",
            keeper=state.keeper.pid if state and state.keeper.alive else None,
            outside=state.outside.pid if state and state.outside and state.outside.alive else None,
            libvirtd=daemon,
            lans={lan.peer: str(network.ends(network.parse_block(lan.block))[not lan.first]) for lan in spec.lans},
            cables={cable.switch: cable.address.partition("/")[0] for cable in spec.cables},
        )

    # make, reboot, destroy

    def make(
        self,
        *,
        link: str | None = None,
        pool_size: str | None = None,
        with_libvirt: bool | None = None,
        directory: Path | None = None,
    ) -> Facts:
        """Create the box, or repair it; a healthy one is not changed. None: keep the setting, or use the default.

        Raises BoxError, after removing what this call created.
        """
        asked = {"link": link, "pool_size": pool_size, "libvirt": with_libvirt}
        wanted = {key: value for key, value in asked.items() if value is not None}
        new = self._register(wanted, directory)
        with locked(self.directory):
            try:
                self._pool_file()
                if self.problem():
                    self._drop()
                    self._bring_up()
                self._connect_cables()
                if self.spec.libvirt:
                    self.libvirtd("start")
            except BaseException:
                if new:
                    self._remove()
                raise
        return self.facts()

    def _register(self, wanted: Mapping[str, Any], directory: Path | None) -> bool:
        """Write box.json with free addresses unless the box exists as requested. Returns whether it was written."""
        with locked(BOXES):
            link = BOXES / self.name
            if self.exists:
                have = dataclasses.asdict(self.spec)
                other = [f"{key}={have[key]}" for key, value in wanted.items() if have[key] != value]
                if directory is not None and directory.resolve() != self.directory:
                    other.append(f"dir={self.directory}")
                if other:
                    raise BoxError(f"box {self.name!r} exists with {', '.join(other)}: destroy it first")
                return False
            spec = Spec(name=self.name, **wanted)
            if spec.link not in LINKS:
                raise BoxError(f"link {spec.link!r}: one of {', '.join(LINKS)}")
            pool_bytes(spec.pool_size)
            place = (directory or link).absolute()
            if any(place.is_relative_to(hidden) for hidden in _HIDDEN):
                raise BoxError(f"dir {place}: the box hides what is below {', '.join(map(str, _HIDDEN))}")
            place.mkdir(mode=0o711, parents=True, exist_ok=True)
            if place.owner() != "root" or (place != link and any(place.iterdir())):
                raise BoxError(f"dir {place}: must be empty and root's")
            if place != link:
                link.unlink(missing_ok=True)
                link.symlink_to(place)
            if spec.link != "none":
                taken = network.host_networks() + self._others_networks()
                spec = dataclasses.replace(spec, uplink=str(network.choose(self.name, network.UPLINKS, taken)))
            write_json(place / "box.json", dataclasses.asdict(spec))
            return True

    def _others_networks(self) -> list[IPv4Network]:
        blocks = []
        for other in names():
            box = Box(other)
            if other != self.name and box.exists:
                blocks += [box.spec.uplink, *(lan.block for lan in box.spec.lans)]
        return [network.parse_block(block) for block in blocks if block]

    def _pool_file(self) -> None:
        pool = self.directory / "pool.img"
        if pool.exists():
            return
        for left in self.directory.glob("pool.*.new"):  # of a killed process, whose mkfs.btrfs may still write to it
            left.unlink()
        with tempfile.NamedTemporaryFile(dir=self.directory, prefix="pool.", suffix=".new", delete=False) as stream:
            stream.truncate(pool_bytes(self.spec.pool_size))
        fresh = Path(stream.name)
        command(["mkfs.btrfs", "--quiet", "--nodiscard", "--nodesize", "4k", fresh])  # as in the documents
        fresh.replace(pool)

    def _bring_up(self) -> None:
        spec, directory = self.spec, self.directory
        keeper.prepare(directory, spec.libvirt)
        for part in ("log", "pids"):
            (directory / part).mkdir(exist_ok=True)
        outside, outside_members = self._outside(spec)
        places = cgroups.current(self.name)
        pid = detach(
            lambda: keeper.box(self.name, directory, places, spec.libvirt), log=directory / "log" / "keeper.log"
        )
        state = State(Process.of(pid), tuple(str(place.members) for place in places), outside, outside_members)
        write_json(directory / "state.json", dataclasses.asdict(state))
        network.batch(pid, ["link set lo up"])
        if spec.link != "none":
            block = network.parse_block(spec.uplink)
            network.connect_uplink(network.host_device(self.name), block, pid, outside.pid if outside else None)
        for lan in spec.lans:
            self._connect_lan(lan)

    def _outside(self, spec: Spec) -> tuple[Process | None, tuple[str, ...]]:
        """The namespace at the other end of the link. It survives a reboot of the box, as another host does."""
        if spec.link != "outside":
            return None, ()
        state = self.state
        if state is not None and state.outside is not None and state.outside.alive:
            return state.outside, state.outside_members
        cgroups.kill(cgroups.find(f"{self.name}.outside"))
        places = cgroups.current(f"{self.name}.outside")
        pid = detach(lambda: keeper.outside(self.name, places), log=self.directory / "log" / "keeper.log")
        network.batch(pid, ["link set lo up"])
        return Process.of(pid), tuple(str(place.members) for place in places)

    def _connect_lan(self, lan: Lan) -> None:
        """Connect two boxes if both run; the one that starts later does it."""
        peer = Box(lan.peer)
        there = peer.state if peer.exists else None
        if there is None or not there.keeper.alive:
            return
        with contextlib.suppress(BoxError):  # the kernel may still be removing the old pair with its namespace
            network.batch(there.keeper.pid, [f"link del {lan.device}"])
        pids = (self._running().keeper.pid, there.keeper.pid)
        one, other = pids if lan.first else pids[::-1]
        network.connect_lan(network.parse_block(lan.block), lan.device, one, other)

    def _drop(self) -> None:
        """Remove all that a power failure would end."""
        cgroups.kill(cgroups.find(self.name))
        network.remove_host_device(network.host_device(self.name))
        state = self.state
        if state is not None and state.outside is not None and state.outside.alive:
            with contextlib.suppress(BoxError):
                network.batch(state.outside.pid, ["link del eth0"])
        self._wait_for_loop()
        for file in (self.directory / "pids").glob("*.pid"):
            file.unlink()

    def _wait_for_loop(self) -> None:
        """Wait until the kernel has unmounted the pool, some time after the last process of the mount namespace."""
        pool = str(self.directory / "pool.img")

        if not wait_until(lambda: pool not in {one.removesuffix(" (deleted)") for one in loop_files()}, 180):
            raise BoxError(f"{pool} stays on a loop device: something outside the box uses its pool")

    def reboot(self) -> Facts:
        """Kill all processes and start the box again; the pool, /var/lib/slicemgr and libvirt's files survive."""
        if not self.exists:
            raise BoxError(f"there is no box {self.name!r}")
        with locked(self.directory):
            self._drop()
            self._bring_up()
            self._connect_cables()
            if self.spec.libvirt:
                self.libvirtd("start")
        return self.facts()

    def destroy(self) -> None:
        """Remove the box completely, if it exists. Raises BoxError if something cannot be removed."""
        with locked(BOXES):
            if (BOXES / self.name).exists():
                with locked(self.directory):  # also held by children of a killed process, until they are in a cgroup
                    self._remove()
            elif (BOXES / self.name).is_symlink():
                self._remove()
            else:
                cgroups.kill(cgroups.find(self.name) + cgroups.find(f"{self.name}.outside"))
                network.remove_host_device(network.host_device(self.name))
            with contextlib.suppress(OSError):
                BOXES.rmdir()

    def _remove(self) -> None:
        directory = self.directory
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        within = [path for path in mounted if Path(path).is_relative_to(directory)]
        if within:
            raise BoxError(f"unmount {', '.join(within)} first: the files below would be deleted")
        if self.exists:
            self._leave_lans()
        cgroups.kill(cgroups.find(f"{self.name}.outside"))
        self._drop()
        if directory.exists():
            shutil.rmtree(directory)
        (BOXES / self.name).unlink(missing_ok=True)

    def _leave_lans(self) -> None:
        for lan in self.spec.lans:
            peer = Box(lan.peer)
            if peer.exists:
                kept = tuple(other for other in peer.spec.lans if other.peer != self.name)
                _write(peer, lans=kept)

    def join(self, other: Box) -> Facts:
        """Connect two boxes by a veth with addresses, unless they are connected."""
        if other.name == self.name:
            raise BoxError("a box cannot be joined to itself")
        with locked(BOXES):
            if all(lan.peer != other.name for lan in self.spec.lans):
                self._running()
                other._running()
                used = {lan.device for box in (self, other) for lan in box.spec.lans}
                device = next(f"lan{number}" for number in range(len(used) + 1) if f"lan{number}" not in used)
                taken = network.host_networks() + self._others_networks()
                block = str(network.choose(f"{self.name} {other.name}", network.LANS, taken))
                for box, peer, first in ((self, other, True), (other, self, False)):
                    lan = Lan(peer.name, device, block, first)
                    _write(box, lans=(*box.spec.lans, lan))
                self._connect_lan(self.spec.lans[-1])
        return self.facts()

    def plug(self, switch: Switch, *, outside: bool = False, delay: float = 0.0) -> str:
        """Connect the box, or its outside namespace, to a switch, unless it is connected. Returns its address.

        delay: milliseconds that a frame needs in each direction; a cable with another delay is replaced.
        """
        with locked(BOXES):
            spec = self.spec
            found = next((one for one in spec.cables if one.switch == switch.name), None)
            if found is None:
                others = [Box(name) for name in names()]
                taken = {one.address for box in others if box.exists for one in box.spec.cables}
                device = "wan" if outside else f"net{len(spec.cables)}"
                found = Cable(switch.name, device, switch.free_address(taken), outside, delay)
                _write(self, cables=(*spec.cables, found))
            elif found.delay != delay:
                changed = dataclasses.replace(found, delay=delay)
                _write(self, cables=tuple(changed if one == found else one for one in spec.cables))
                self._unplug(switch, found)
        with locked(self.directory):
            self._connect_cables()
        return found.address.partition("/")[0]

    def _unplug(self, switch: Switch, cable: Cable) -> None:
        state = self._running()
        where = state.outside if cable.outside else state.keeper
        if where is not None and switch.pid is not None:
            switch.disconnect(cable, self.name, where.pid)

    def _connect_cables(self) -> None:
        """A cable to a switch that does not run is left out until `make`."""
        state = self._running()
        for cable in self.spec.cables:
            where = state.outside if cable.outside else state.keeper
            switch = Switch(cable.switch)
            if where is not None and switch.pid is not None:
                switch.connect(cable, self.name, where.pid)

    # programs

    def enter(self, argv: Sequence[str]) -> None:
        """Replace this process by `argv` inside the box, with its signals and terminal. Raises BoxError, OSError."""
        state = self._running()
        flags = CLONE_NEWCGROUP | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS
        _become(state.keeper, state.members, flags, argv)

    def enter_outside(self, argv: Sequence[str]) -> None:
        """Replace this process by `argv` in the outside namespace."""
        state = self._running()
        if state.outside is None or not state.outside.alive:
            raise BoxError(f"box {self.name!r} has no outside namespace: make it with --link outside")
        _become(state.outside, state.outside_members, CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS, argv)

    def background(self, tag: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a daemon in the box, with its output in log/TAG.log and its pid in pids/TAG.pid. Returns the pid."""
        if not _NAME.fullmatch(tag):
            raise BoxError(f"tag {tag!r}: a-z, 0-9 and - only")
        self._running()

        def work() -> None:
            raise_file_limit()
            os.chdir("/")
            self.enter(argv)

        pid = detach(work, self.directory / "log" / f"{tag}.log", environment)
        (self.directory / "pids" / f"{tag}.pid").write_text(f"{pid}\n")
        return pid

    def daemon(self, tag: str) -> int | None:
        """The pid of a daemon that was started in the background and still runs; None otherwise."""
        state = self.state
        try:
            pid = int((self.directory / "pids" / f"{tag}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        if state is None or start_time(pid) is None:
            return None
        return pid if pid in cgroups.members([Path(state.members[0])]) else None

    def signal_daemon(self, tag: str, number: int, seconds: float = 20) -> None:
        """Send a signal to a daemon, if it runs, and wait for at most `seconds` until it has ended."""
        pid = self.daemon(tag)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if not wait_until(lambda: start_time(pid) is None, seconds):
            raise BoxError(f"{tag} ({pid}) does not end")

    def libvirtd(self, action: str) -> None:
        """Start, stop, restart or kill (SIGKILL) the libvirtd of the box. virtlogd keeps running, as in production."""
        if not self.spec.libvirt:
            raise BoxError(f"box {self.name!r} was made without libvirt")
        if action == "kill":
            self.signal_daemon("libvirtd", signal.SIGKILL)
        if action in ("stop", "restart"):
            try:
                self.signal_daemon("libvirtd", signal.SIGTERM)
            except BoxError:
                self.signal_daemon("libvirtd", signal.SIGKILL)
        if action in ("start", "restart"):
            self._start_libvirt()

    def _start_libvirt(self) -> None:
        libvirt.write(self.path("/etc/libvirt"), self.name)
        for tag, argv, socket in (
            ("virtlogd", libvirt.VIRTLOGD, libvirt.LOG_SOCKET),
            ("libvirtd", libvirt.LIBVIRTD, libvirt.SOCKET),
        ):
            if self.daemon(tag) is None:
                self.path(socket).unlink(missing_ok=True)
                self.background(tag, argv)
            if not wait_until(lambda: self.path(socket).exists() or self.daemon(tag) is None, 30):  # noqa: B023
                raise BoxError(f"{tag} does not listen: see {self.directory}/log/{tag}.log")
        # libvirtd answers only when every driver is ready.
        done = self.run(["virsh", "-c", "lxc:///system", "uri"], timeout=60)
        if done.returncode != 0:
            raise BoxError(f"libvirtd does not answer: {done.stderr.strip()}; see {self.directory}/log/libvirtd.log")

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float = 60,
        input: str | None = None,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the box to its end and capture its output as text. timeout: seconds."""
        return subprocess.run(
            [*self.prefix, *map(str, argv)],
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
            env=None if env is None else {**os.environ, **env},
        )

    def run_outside(self, argv: Sequence[str | Path], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a program in the outside namespace to its end and capture its output as text. timeout: seconds."""
        return subprocess.run(
            [*self.outside_prefix, *map(str, argv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def popen(self, argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in the box; signals to the process reach the program itself."""
        return subprocess.Popen([*self.prefix, *map(str, argv)], **options)


def _become(leader: Process, members: Sequence[str], flags: int, argv: Sequence[str]) -> None:
    here = Path.cwd()
    try:
        descriptor = os.pidfd_open(leader.pid)
    except ProcessLookupError as error:
        raise BoxError("the box has just gone") from error
    if not leader.alive:
        raise BoxError("the box has just gone")
    cgroups.join([Path(member) for member in members])
    setns(descriptor, flags)
    os.close(descriptor)
    try:
        os.chdir(here)
    except OSError:
        os.chdir("/")
    os.execvp(argv[0], list(argv))

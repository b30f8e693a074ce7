"""Slivers with a root of a few megabytes, started by the drivers only, without image, pool or service.

`in_box` moves the calling thread into a node box, so that it starts, opens and connects to objects of the box.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from host_node import PRODUCTION
from nodebox_box import Box
from nodebox_linux import CLONE_NEWCGROUP, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUTS, setns, unshare

from slicemgr import names
from slicemgr.config import Config, LibvirtConfig, NodeConfig
from slicemgr.drivers.kernel import capture_rings
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.domain_xml import domain_xml
from slicemgr.drivers.libvirt.host import Host
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.model import GIB, MIB, Desired, Limits, PortBlock, Sliver, SliverType

REPOSITORY = Path(__file__).parent.parent
APPLETS = [
    "cat",
    "chmod",
    "cp",
    "echo",
    "grep",
    "hostname",
    "id",
    "kill",
    "ls",
    "mkdir",
    "mount",
    "mv",
    "ps",
    "rm",
    "setsid",
    "sleep",
    "sync",
    "touch",
    "uname",
    "wc",
]
FIRST_UID = 3_000_000

_CLONE_FS = 0x200


@contextmanager
def in_box(name: str, pool_size: str = "1G") -> Iterator[Box]:
    """Create a box, move this thread into it, and remove it at the end. Call methods of the box within `outside`.

    If host_node.PRODUCTION, the host itself is the node, a production-like machine that was made for the tests.
    """
    if PRODUCTION:
        yield Box(name)
        return
    Hypervisor(LibvirtConfig())  # starts libvirt's event thread outside: inside, it would keep the box's pool busy
    box = Box(name)
    if box.exists:  # of a killed run
        box.destroy()
    box.make(link="none", pool_size=pool_size)
    try:
        with _moved(box):
            yield box
    finally:
        box.destroy()


@contextmanager
def outside(box: Box) -> Iterator[None]:
    """Within the context, the thread is on the host, from which the box is controlled."""
    home = _homes[box.name]
    _move(home)
    try:
        yield
    finally:
        _move_in(box)


_homes: dict[str, tuple[int, ...]] = {}


@contextmanager
def _moved(box: Box) -> Iterator[None]:
    cwd = Path.cwd()
    home = tuple(os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in ("cgroup", "net", "uts", "mnt"))
    _homes[box.name] = home
    _move_in(box)
    try:
        yield
    finally:
        _move(home)
        os.chdir(cwd)
        del _homes[box.name]
        for descriptor in home:
            os.close(descriptor)


def _move(namespaces: tuple[int, ...], flags: int = 0) -> None:
    # setns to a mount namespace requires that no other thread shares root and working directory.
    unshare(_CLONE_FS)
    for descriptor in namespaces:
        setns(descriptor, flags)


def _move_in(box: Box) -> None:
    state = box.state
    assert state is not None
    keeper = os.pidfd_open(state.keeper.pid)
    try:
        _move((keeper,), CLONE_NEWCGROUP | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS)
    finally:
        os.close(keeper)


def compile_probe(directory: Path, name: str = "probe") -> Path:
    """Compile a static program of tests/system with attacks of a tenant; for 32 bits if its name ends with 32."""
    target = directory / name
    source = REPOSITORY / "tests" / "system" / f"{name}.c"
    bits = ["-m32"] if name.endswith("32") else []
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-static", *bits]
    subprocess.run(["gcc", *flags, "-o", target, source], check=True)
    return target


def compile_launcher(directory: Path, *options: str, without: tuple[str, ...] = ()) -> Path:
    """Compile the launcher. without: lines of its source to remove for a weakened control; each must exist."""
    target = directory / "sliver-launcher"
    if PRODUCTION:  # a directory from which AppArmor allows libvirtd to start programs
        target = Path("/usr/lib/libvirt") / f"{directory.name}-launcher"
    copies = directory / "launcher-sources"
    shutil.copytree(REPOSITORY / "tools" / "launcher", copies, dirs_exist_ok=True)
    for line in without:
        (found,) = (path for path in copies.glob("*.[ch]") if line in path.read_text())
        found.write_text(found.read_text().replace(line, ""))
    sources = sorted(copies.glob("*.c"))
    flags = ["-O2", "-Wall", "-Wextra", *([] if without else ["-Werror"]), *options]
    library = copies / "maker.so"
    subprocess.run(["gcc", *flags, "-fPIC", "-shared", "-s", "-o", library, copies / "preload" / "maker.c"], check=True)
    flags.append(f'-DMAKER_LIBRARY="{library}"')
    subprocess.run(["gcc", *flags, "-o", target, *sources, "-lseccomp"], check=True)
    return target


def make_root(root: Path, rc: str = "", files: dict[str, Path] | None = None) -> Path:
    """Make a root with the tools of busybox and `rc` as the tenant's script at boot."""
    for directory in (
        "bin",
        "etc",
        "root",
        "proc",
        "sys",
        "dev",
        "tmp",
        "run",
        "var/log",
        "usr/bin",
        "usr/sbin",
        "sbin",
    ):
        (root / directory).mkdir(parents=True)
    (root / "var" / "run").symlink_to("/run")
    copy_program(Path("/bin/busybox"), root)
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    for path, source in (files or {}).items():
        shutil.copy(source, root / path)
    script = root / "etc" / "rc.local"
    script.write_text(f"#!/bin/sh\n{rc}\n")
    script.chmod(0o755)
    return root


def copy_program(program: Path, root: Path) -> None:
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for path in [str(program.resolve()), *re.findall(r"(/\S+) \(0x", linked)]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    link = root / "bin" / program.name
    if not link.exists():
        link.symlink_to(program.resolve())


@contextmanager
def tiny_node(directory: Path, box: str, *probes: str) -> Iterator[Slivers]:
    """Slivers in a separate box, with the launcher and probes compiled in `directory`."""
    directory.chmod(0o711)
    launcher = compile_launcher(directory)
    for name in probes:
        compile_probe(directory, name)
    for parent in directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o111)
    with in_box(box):
        made = Slivers(directory, launcher)
        yield made
        made.end()


class Slivers:
    """Starts and ends tiny slivers on the node of the calling thread."""

    def __init__(self, directory: Path, launcher: Path) -> None:
        self.config = Config(node=NodeConfig(pool=directory / "pool"), libvirt=LibvirtConfig(launcher=launcher))
        self.config.node.pool.mkdir(mode=0o700)
        (self.config.node.run_dir / "launch").mkdir(mode=0o700, parents=True, exist_ok=True)
        capture_rings.install(self.config.node.run_dir, self.config.limits.capture_rings.bytes)
        self.hypervisor = Hypervisor(self.config.libvirt)
        self.place = launch.host(self.config)
        self._serial = 0
        self._made: list[Sliver] = []

    def weakened(self, directory: Path, *without: str) -> Host:
        """The host with a launcher that lacks these lines of its source, as a control."""
        directory.chmod(0o711)
        return replace(self.place, launcher=compile_launcher(directory, without=without))

    def new(self, arch: str = "x86_64", /, **limits: int | float | None) -> Sliver:
        """A sliver without any objects yet; its root must be made at `root(sliver)`."""
        self._serial += 1
        tag, serial = names.new_tag(), self._serial
        wanted = replace(Limits(memory=128 * MIB, disk=GIB, pids=64, cpu=0.5), **limits)  # type: ignore[arg-type]
        sliver = Sliver(
            id=names.sliver_id(tag, 0),
            serial=serial,
            tag=tag,
            slice_name="tiny",
            index=0,
            type=SliverType.LXC,
            desired=Desired.RUNNING,
            image="0" * 64,
            arch=arch,
            address=f"10.99.0.{serial}",
            ports=PortBlock(10000 + 20 * serial, 20),
            uid_first=FIRST_UID + 65536 * serial,
            limits=wanted,
            ssh_keys=(),
        )
        self._made.append(sliver)
        return sliver

    def root(self, sliver: Sliver) -> Path:
        return names.root_dir(self.config.node.pool, sliver.id)

    def start(self, sliver: Sliver, place: Host | None = None, edit: Callable[[str], str] = lambda xml: xml) -> int:
        """Start a sliver as the agent does. Returns the process ID of its init on the host. Raises Failed."""
        launch.write(self.config, sliver)
        self.hypervisor.create(sliver.type, edit(domain_xml(sliver, place or self.place)), sliver.limits.memory)
        return self.hypervisor.init_pid(sliver.id)

    def start_unconfined(self, sliver: Sliver) -> tuple[Path, int]:
        """A control: start the domain without launcher, masks and idmapped mount, with libvirt's default capabilities.

        Returns the new path of its root, and the process ID of its init on the host.
        """
        root = self.config.node.pool.parent / sliver.id
        shutil.move(self.root(sliver), root)
        subprocess.run(["chown", "-Rh", f"{sliver.uid_first}:{sliver.uid_first}", root], check=True)
        plain = Path("/usr/lib/libvirt/libvirt_lxc")
        place = replace(self.place, root=root, launcher=plain, masked_dirs=(), masked_files=(), vmstat=None)
        return root, self.start(sliver, place, lambda xml: xml.replace('policy="deny"', 'policy="default"'))

    def boot(self, rc: str = "", **limits: int | float | None) -> tuple[Sliver, int]:
        sliver = self.new(**limits)
        make_root(self.root(sliver), rc)
        return sliver, self.start(sliver)

    def end(self) -> None:
        """End every sliver of this object."""
        for sliver in self._made:
            self.hypervisor.kill(sliver.id)
            launch.remove(self.config, sliver.id)
        self._made.clear()


def eventually(what: Callable[[], object], seconds: float = 60) -> None:
    """Wait until `what` is true; fails after `seconds`, more than a working host needs."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        pause.wait(0.05)


def processes_named(text: str) -> list[int]:
    """The processes of the host that have `text` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().find(text.encode()) >= 0:
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def parse_lines(text: str) -> dict[str, str]:
    """The values of `name=value` lines, by name."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

#!/usr/bin/env python3
"""A production-like host: Debian with systemd and pure cgroup v2 in an emulated machine, set up as the README says.

Three layers: a tree of Debian's packages (kept, keyed by the list), the program installed in it by the README's own
commands, and a boot on which the commands that need a running system and then the tests are run. The machine has no
network card; what it finds out comes through its second serial port as JUnit XML.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".run" / "prodhost"
ADDRESS = "192.0.2.10"  # as tools/units/slicemgr.toml says
SECTION = "## On a production host"
SYSTEM = ("systemd-sysv", "dbus", "udev", "apparmor", "initramfs-tools")  # what an installed Debian has
SUITES = ("bookworm", "trixie")
BOOT_SECONDS = 1500.0
DISK = "6G"


def say(text: str) -> None:
    print(f"prodhost: {text}", file=sys.stderr, flush=True)


# the README's commands


def readme_commands(text: str) -> list[str]:
    """The commands of the section on production hosts, in order, comments left out, chains of `&&` taken apart."""
    section = text.split(SECTION, 1)[1].split("\n## ", 1)[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    parts = (part.strip() for line in lines for part in re.sub(r"\s{2,}#.*$", "", line).split("&&"))
    return [part for part in parts if part]


@dataclass(frozen=True)
class Commands:
    """By where they are run: as the package list of the tree, in the tree, or on the running machine."""

    packages: str
    pool: str
    install: tuple[str, ...]
    start: tuple[str, ...]


def sort_commands(commands: Sequence[str]) -> Commands:
    """Raises ValueError if the README has not got what is needed."""
    running = ("systemctl", "sysctl", "slicectl", "mount", "mkdir", "echo", "modprobe")
    packages = [one for one in commands if one.startswith("apt-get ")]
    pool = [one for one in commands if one.startswith("mkfs.btrfs ")]
    start = [one for one in commands if one.split()[0] in running]
    install = [one for one in commands if one not in (*packages, *pool, *start)]
    if len(packages) != 1 or len(pool) != 1 or not start or not any("pip install" in one for one in install):
        raise ValueError(f"the README's section {SECTION!r} lacks a step: {commands}")
    return Commands(packages[0], pool[0], tuple(install), tuple(start))


def package_list() -> list[str]:
    text = (REPO / "tools" / "packages.txt").read_text()
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]


# the tree


def ensure_tree(suite: str) -> Path:
    """Debian with the packages of the list, installed once for each list."""
    packages = [*package_list(), *SYSTEM]
    key = hashlib.sha256("\n".join([suite, *packages]).encode()).hexdigest()[:12]
    tree = CACHE / f"{suite}-{key}"
    if tree.exists():
        return tree
    from slicemgr.drivers import recipe

    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{suite}-*"):
        shutil.rmtree(old)
    say(f"installing Debian {suite} with tools/packages.txt (once)")
    wanted = recipe.Recipe(suite, "amd64", tuple(packages), 0)
    unfinished = CACHE / f".{suite}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    words = [
        "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--quiet",
        f"--include={','.join(packages)}", "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={one}" for one in recipe.host_apt_options()),
        suite, str(unfinished), *recipe.host_sources(wanted),
    ]  # fmt: skip
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    unfinished.rename(tree)
    return tree


@contextmanager
def overlay(tree: Path, work: Path) -> Iterator[Path]:
    """`tree` with a layer of its own above it; to be called in a private mount namespace."""
    upper, scratch, merged = work / "upper", work / "scratch", work / "merged"
    for directory in (upper, scratch, merged):
        directory.mkdir()
    options = f"lowerdir={tree},upperdir={upper},workdir={scratch}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", "-R", "-l", merged], check=True)


def install(root: Path, commands: Commands) -> None:
    """The README's commands that need no running system, in a clone inside `root`."""
    clone = root / "root" / "slicemgr"
    tracked = subprocess.run(
        ["git", "-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        if (REPO / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, clone / name)
    in_tree(root, "set -ex; cd /root/slicemgr\n" + "\n".join(commands.install))
    in_tree(root, "/opt/slicemgr/bin/pip install --quiet pytest pytest-timeout hypothesis")
    (root / "opt" / "tests").mkdir()
    for name in ("tests", "tools", "pyproject.toml"):  # not the sources: the installed package is what is tested
        shutil.move(clone / name, root / "opt" / "tests" / name)
    shutil.rmtree(clone)


def in_tree(root: Path, script: str) -> None:
    """Run a script in the tree with the host's way to Python's package index."""
    cache, inside = Path.home() / ".cache" / "pip", root / "root" / ".cache" / "pip"
    binds = [(Path("/dev"), root / "dev"), (Path("/proc"), root / "proc")]
    cache.mkdir(parents=True, exist_ok=True)
    inside.mkdir(parents=True, exist_ok=True)
    binds.append((cache, inside))
    environment = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
    }
    for name in (
        *filter(None, (os.environ.get("PIP_FIND_LINKS"),)),
        "/etc/ssl/certs",
        "/etc/resolv.conf",
        "/etc/pip.conf",
    ):
        outside, target = Path(name), root / name.lstrip("/")
        if outside.exists() and outside.is_absolute():
            if outside.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif not target.exists():
                target.touch()
            binds.append((outside, target))
    for source, target in binds:
        subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        environment |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        subprocess.run(
            ["chroot", root, "sh", "-c", script],
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    finally:
        for _, target in reversed(binds):
            subprocess.run(["umount", "-l", target], check=True)


# the boot

# Tests look soon for what takes its time, and everything takes its time in emulation.
SETTINGS = r"""printf '\n[agent]\nreconcile = "3s"\nssh_wait = "120s"\n' >>/etc/slicemgr/slicemgr.toml"""

RUN = """\
#!/bin/sh
# Run at boot by slicemgr-tests.service: what the README says for a running system, then the tests.
export LC_ALL=C.UTF-8 HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export SLICEMGR_NO_BOX=1 SLICEMGR_TEST_BASE=/opt/tests/base.json PYTHONDONTWRITEBYTECODE=1
mark() {{ echo "== $(cut -d' ' -f1 /proc/uptime) $*"; }}
finish() {{
    journalctl --no-pager -u slicemgr-agent -u slicemgr-web | tail -n 60
    mark the end
    sync
    systemctl poweroff --force --force
}}
trap finish EXIT
cd /opt/tests
ip netns add users
ip link add lan type veth peer name eth0 netns users
ip addr add {address}/24 dev lan && ip link set lan up
ip -n users addr add 192.0.2.99/24 dev eth0 && ip -n users link set eth0 up && ip -n users link set lo up
mark setting up
set -ex
{settings}
{start}
set +ex
mark testing
/opt/slicemgr/bin/python -m pytest -p no:cacheprovider --color=no --tb=short --junitxml=/tmp/results.xml {tests}
mark done
stty -F /dev/ttyS1 raw 2>/dev/null
cat /tmp/results.xml >/dev/ttyS1
"""

UNIT = """\
[Unit]
Description=the tests of slicemgr
After=multi-user.target libvirtd.service
Wants=libvirtd.service
[Service]
Type=oneshot
ExecStart=/opt/tests/run
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""


def prepare_boot(root: Path, commands: Commands, base: str, tests: Sequence[str]) -> None:
    """What a running machine needs besides, and the tests as a unit."""
    runner = root / "opt" / "tests" / "run"
    start = "\n".join(commands.start).replace("/dev/YOUR-DISK", "/dev/vdb")
    runner.write_text(RUN.format(address=ADDRESS, start=start, settings=SETTINGS, tests=shlex.join(tests)))
    runner.chmod(0o755)
    (root / "opt" / "tests" / "base.json").write_text(base)
    (root / "etc" / "systemd" / "system" / "slicemgr-tests.service").write_text(UNIT)
    (root / "etc" / "fstab").write_text("/dev/vda / ext4 defaults 0 1\n")
    (root / "etc" / "hostname").write_text("node1\n")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node1\n")
    (root / "etc" / "resolv.conf").write_text("")
    in_tree(root, "systemctl enable slicemgr-tests && systemctl mask serial-getty@ttyS0.service getty@tty1.service")


def make_disk(root: Path, target: Path) -> None:
    """A raw disk with the tree as its ext4 file system, no partitions."""
    subprocess.run(["truncate", "-s", DISK, target], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1", "-d", root, target], check=True)


def boot(kernel: Path, initrd: Path, root_disk: Path, pool_disk: Path, work: Path, seconds: float) -> str:
    """Run the machine to its end; the results as XML. Raises RuntimeError with the console's end if there are none."""
    console, results = work / "console.log", work / "results.xml"
    words = [
        "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
        "-m", "4G", "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot",
        "-kernel", str(kernel), "-initrd", str(initrd),
        "-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=false loglevel=3",
        "-drive", f"file={root_disk},format=raw,if=virtio,cache=unsafe",
        "-drive", f"file={pool_disk},format=raw,if=virtio,cache=unsafe,snapshot=on",
        "-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,rng=rng",
        "-chardev", f"file,id=console,path={console}", "-serial", "chardev:console",
        "-chardev", f"file,id=results,path={results}", "-serial", "chardev:results",
    ]  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as machine:
        try:
            machine.wait(seconds)
        except subprocess.TimeoutExpired:
            machine.kill()
    text = results.read_text() if results.exists() else ""
    if not text.rstrip().endswith("</testsuites>"):
        tail = "\n".join(console.read_text(errors="replace").splitlines()[-60:]) if console.exists() else "nothing"
        raise RuntimeError(f"the machine gave no results; its console ends with\n{tail}")
    return text


def run(suite: str, pool_disk: Path, base: str, tests: Sequence[str], work: Path, seconds: float = BOOT_SECONDS) -> str:
    """Install, boot, test; the results as JUnit XML. To be called in a private mount namespace.

    pool_disk: a raw disk made as the README says, with a base in it; base: its row, as JSON.
    """
    commands = sort_commands(readme_commands((REPO / "README.md").read_text()))
    tree = ensure_tree(suite)
    started = time.monotonic()
    with overlay(tree, work) as root:
        install(root, commands)
        prepare_boot(root, commands, base, tests)
        say(f"installed in {time.monotonic() - started:.0f} s")
        disk = work / "root.raw"
        make_disk(root, disk)
        kernel = work / "vmlinuz"
        initrd = work / "initrd"
        shutil.copy(max((root / "boot").glob("vmlinuz-*")), kernel)
        shutil.copy(max((root / "boot").glob("initrd.img-*")), initrd)
    say(f"booting after {time.monotonic() - started:.0f} s")
    try:
        return boot(kernel, initrd, disk, pool_disk, work, seconds)
    finally:
        say(f"ended after {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="bookworm")
    parser.add_argument("--pool-disk", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True, help="the row of the base on the pool's disk, as JSON")
    parser.add_argument("--console", type=Path, help="where a copy of the machine's console goes")
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run.", dir=CACHE) as directory:
        work = Path(directory)
        try:
            sys.stdout.write(
                run(arguments.suite, arguments.pool_disk, arguments.base.read_text(), arguments.tests, work)
            )
        except RuntimeError as error:
            say(str(error))
            return 1
        finally:
            if arguments.console and (work / "console.log").exists():
                shutil.copy(work / "console.log", arguments.console)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A production-like host: Debian with systemd and pure cgroup v2 in an emulated machine, set up as documented.

There are three layers: a tree of Debian packages (cached, keyed by the list), the installation of the program in it by
the commands of the page, and two boots. The first boot runs the commands that need a running system, and then the
tests. The second boot tests the state after a reboot and, at the end, the documented removal. The machine has no
network card; it sends its results through its second serial port as JUnit XML.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import prodhost_machine as machine

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".run" / "prodhost"
INSTALL, NODES = (REPO / "docs" / "how-to" / name for name in ("install.md", "nodes.md"))
SECTION = "On a production host"
REMOVAL = "Removing it"
PACKAGES, PURGE = "Debian packages", "Removing the packages"
PROXY = "TLS: nginx before it"
CENTRE, CENTRE_REMOVAL, SOURCE_REMOVAL = "From one machine to many", "Remove a centre", "A centre from source"
KINDS = (  # from source; Debian packages; both with what the centre of a testbed needs
    "source",
    "packaged",
    "centre",
    "centre-source",
)
SYSTEM = ("systemd-sysv", "dbus", "udev", "apparmor", "initramfs-tools")  # packages of an installed Debian
BENCHES = "tests/production/run_benches.py"
BENCH_PACKAGES = ("redis-server", "memcached", "stress-ng")  # what experiments send to slivers
SUITES = ("bookworm", "trixie")
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # minor numbers, of major number 1


def say(text: str) -> None:
    print(f"prodhost: {text}", file=sys.stderr, flush=True)


# the commands of docs/how-to/install.md


def commands_below(text: str, heading: str) -> list[str]:
    """The commands below a heading, in order, without comments, with chains of `&&` split."""
    section = re.split(rf"^#+ {heading}$", text, maxsplit=1, flags=re.MULTILINE)[1].split("\n#", 1)[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    parts = (part.strip() for line in lines for part in re.sub(r"\s{2,}#.*$", "", line).split("&&"))
    return [part for part in parts if part]


@dataclass(frozen=True)
class Commands:
    """The commands by the place where they run: package list of the tree, in the tree, on the running machine."""

    packages: str
    pool: str
    install: tuple[str, ...]
    start: tuple[str, ...]


def sort_commands(commands: Sequence[str]) -> Commands:
    """Sort the commands by place. Raises ValueError if a step is missing."""
    running = ("systemctl", "sysctl", "slicectl", "mount", "mkdir", "echo", "modprobe")
    packages = [one for one in commands if one.startswith("apt-get ")]
    pool = [one for one in commands if one.startswith("mkfs.btrfs ")]
    start = [one for one in commands if one.split()[0] in running]
    install = [one for one in commands if one not in (*packages, *pool, *start)]
    if len(packages) != 1 or len(pool) != 1 or not start or not any("pip install" in one for one in install):
        raise ValueError(f"the section {SECTION!r} lacks a step: {commands}")
    return Commands(packages[0], pool[0], tuple(install), tuple(start))


def package_list() -> list[str]:
    """The packages that a node needs: the command of docs/how-to/install.md ends at the same line."""
    text = (REPO / "tools" / "packages.txt").read_text().partition("# only for the tests")[0]
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]


def centre_packages() -> list[str]:
    """The packages that the commands for a proxy and for a centre install."""
    commands = [*commands_below(INSTALL.read_text(), PROXY), *commands_below(NODES.read_text(), CENTRE)]
    return sorted({name for one in commands if one.startswith("apt-get install ") for name in one.split()[2:]})


# the tree


def ensure_tree(suite: str, more: Sequence[str] = (), mark: str = "+") -> Path:
    """The tree of a Debian with the packages of the list, installed once for each list.

    more: other packages, with the mark of their tree.
    """
    packages, name = [*package_list(), *SYSTEM, *more], f"{suite}{mark}" if more else suite
    key = hashlib.sha256("\n".join([suite, *packages]).encode()).hexdigest()[:12]
    tree = CACHE / f"{name}-{key}"
    if tree.exists():
        return tree
    from slicemgr.builder import recipe

    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{name}-*"):
        shutil.rmtree(old)
    say(f"installing Debian {suite} with tools/packages.txt {' '.join(more)} (once)")
    wanted = recipe.Recipe(suite, "amd64", tuple(packages), 0)
    unfinished = CACHE / f".{name}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    words = [
        "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--quiet",
        f"--include={','.join(packages)}", "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={one}" for one in recipe.host_apt_options()),
        suite, str(unfinished), *recipe.host_sources(wanted),
    ]  # fmt: skip
    words = ["unshare", "--mount", *words]  # a killed run leaves no mounts
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    unfinished.rename(tree)
    return tree


@contextmanager
def overlay(tree: Path, work: Path) -> Iterator[Path]:
    """`tree` with a separate layer above it. Call it in a private mount namespace."""
    upper, scratch, merged = work / "upper", work / "scratch", work / "merged"
    for directory in (upper, scratch, merged):
        directory.mkdir()
    options = f"lowerdir={tree},upperdir={upper},workdir={scratch}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", "-R", "-l", merged], check=True)


def copy_sources(clone: Path) -> None:
    """Copy the tracked and the untracked, not ignored files, with links as links, as in a clone."""
    tracked = subprocess.run(
        ["git", "-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        if (REPO / name).is_file() or (REPO / name).is_symlink():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, clone / name, follow_symlinks=False)


def install(root: Path, commands: Commands) -> None:
    """Run the documented commands that need no running system, in a clone inside `root`."""
    clone = root / "root" / "slicemgr"
    copy_sources(clone)
    in_tree(root, "set -ex; cd /root/slicemgr\n" + "\n".join(commands.install))
    in_tree(root, "cp -a /opt/slicemgr /opt/testenv")
    _add_tests(root, clone)


BUILD = """
set -ex
cd /root/slicemgr
{environment}
/opt/testenv/bin/python tools/deb.py /opt/packages/1
mkdir /opt/packages/2
for old in /opt/packages/1/*.deb; do
    dpkg-deb --raw-extract $old /tmp/package
    sed -i 's/-1~deb/-2~deb/' /tmp/package/DEBIAN/control
    dpkg-deb --root-owner-group -Znone --build /tmp/package /opt/packages/2
    rm -r /tmp/package
done
"""


def build_packages(root: Path, commands: Commands) -> None:
    """Build the Debian packages of a clone inside `root`, of two revisions, into /opt/packages/1 and /opt/packages/2.

    The environment that builds them, made by the documented commands of an installation from source, has the tests.
    """
    clone = root / "root" / "slicemgr"
    copy_sources(clone)
    pip = [one for one in commands.install if "pip install" in one or one.startswith("python3 -m venv")]
    in_tree(root, BUILD.format(environment="\n".join(pip).replace("/opt/slicemgr", "/opt/testenv")))
    _add_tests(root, clone)


def packaged_commands(text: str, commands: Commands, *, centre: bool = False) -> tuple[list[str], list[str]]:
    """The documented commands on the running machine with packages: those of the installation, and the purge.

    apt does not ask. The settings are changed where the page says so; their example address is that of the machine.
    centre: the machine becomes the centre of a testbed, whose removal is another one.
    """
    pool = [one for one in commands.start if one.split()[0] in ("mkdir", "echo", "mount")]
    found = commands_below(text, PACKAGES)
    (installation,) = [one for one in found if one.startswith("apt install ")]
    started = [one for one in found if one != installation]
    enter = [f"(cd /opt/packages/1 && {installation})".replace("apt ", "apt -y "), machine.SETTINGS.strip()]
    removal = commands_below(NODES.read_text(), CENTRE_REMOVAL) if centre else commands_below(text, PURGE)
    return [*pool, *enter, *started], [one.replace("apt ", "apt -y ") for one in removal]


def source_centre_removal() -> list[str]:
    """The documented commands that remove a centre which was installed from source."""
    pages = INSTALL.read_text(), NODES.read_text()
    stop, *usual = commands_below(pages[1], CENTRE_REMOVAL)
    database = next(number for number, one in enumerate(usual) if one.startswith("runuser "))
    hub, user, *others = commands_below(pages[1], SOURCE_REMOVAL)
    return [stop, hub, user, *commands_below(pages[0], REMOVAL), *others, *usual[database:]]


def _add_tests(root: Path, clone: Path) -> None:
    """Add pytest and the tests of a clone to /opt/testenv and /opt/tests in the tree, and delete the clone."""
    # Without the hashes, because with them, pip requires every package on its command line.
    in_tree(root, "sed -n '/==/s/ .$//p' /root/slicemgr/requirements/dev.txt > /opt/testenv/versions.txt")
    words = "install --quiet --constraint /opt/testenv/versions.txt pytest pytest-timeout hypothesis"
    in_tree(root, f"{machine.OWN_PYTHON} -m pip {words}")
    (root / "opt" / "tests").mkdir()
    for name in ("tests", "tools", "docs", "pyproject.toml"):  # not the sources: the tests use the installed package
        shutil.move(clone / name, root / "opt" / "tests" / name)
    shutil.rmtree(clone)


def in_tree(root: Path, script: str) -> None:
    """Run a script as root in the tree, with the host's settings for Python's package index. It changes the tree only.

    Call it in a private mount namespace. The mounts of the host are read-only, except the cache of pip.
    """
    kept = CACHE / "pip"
    kept.mkdir(parents=True, exist_ok=True)
    binds = [(Path("/proc"), root / "proc", "bind,ro"), (kept, root / "root" / ".cache" / "pip", "bind")]
    environment = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
    }
    outside = ("/etc/ssl/certs", "/etc/resolv.conf", "/etc/pip.conf", os.environ.get("PIP_FIND_LINKS", ""))
    there = [one for one in outside if one.startswith("/") and Path(one).exists()]
    binds += [(Path(one), root / one.lstrip("/"), "bind,ro") for one in there]
    environment |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    mounted: list[Path] = []
    try:
        _make_devices(root / "dev")
        mounted.append(root / "dev")
        for source, target, options in binds:
            _make_place(source, target)
            subprocess.run(["mount", "-o", options, source, target], check=True)
            mounted.append(target)
        subprocess.run(
            ["chroot", root, "sh", "-c", script],
            check=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    finally:
        for target in reversed(mounted):
            subprocess.run(["umount", "-l", target], check=True)


def _make_place(source: Path, target: Path) -> None:
    """Create the mount point for `source`."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.touch()


def _make_devices(directory: Path) -> None:
    """Mount a file system with the common devices. Raises CalledProcessError; then nothing is mounted."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=64m", "dev", directory], check=True)
    for name, minor in DEVICES.items():
        os.mknod(directory / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        (directory / name).chmod(0o666)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (directory / name).symlink_to(f"/proc/self/{target}")
    (directory / "shm").mkdir(mode=0o1777)


# the whole


def run(
    suite: str,
    pool_disk: Path,
    images: str,
    tests: Sequence[str],
    after_reboot: Sequence[str],
    console: Path,
    *,
    kind: str,
    output: Path | None = None,
    hardware: machine.Hardware = machine.USUAL,
    bench: Sequence[Sequence[str]] = (),
    programs: Sequence[Path] = (),
) -> str:
    """Install, boot, test, and return the output of the machine. Call it in a private mount namespace.

    pool_disk: a raw disk created as documented, with bases and disk images in it. images: their rows, as JSON.
    kind: of KINDS; packages are installed on the running machine. output: the folder for the files that tests of the
    first boot keep. bench: commands that its tests run, `slicectl bench` or a file of tools/, with the packages that
    they need. programs: copied to /usr/local/bin.
    """
    text = INSTALL.read_text()
    commands = sort_commands(commands_below(text, SECTION))
    packaged, centre = kind in ("packaged", "centre"), kind in ("centre", "centre-source")
    removal = source_centre_removal() if centre else commands_below(text, REMOVAL)
    script = machine.Script(commands.start, removal, tests, after_reboot)
    if packaged:
        found = packaged_commands(text, commands, centre=centre)
        script = machine.Script(*found, tests, after_reboot, settings=":")
    if bench:
        tree = ensure_tree(suite, BENCH_PACKAGES, "-bench")
    else:
        tree = ensure_tree(suite, centre_packages() if centre else ())
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="run.", dir=CACHE) as directory:
        work = Path(directory)
        with overlay(tree, work) as root:
            (build_packages if packaged else install)(root, commands)
            in_tree(root, "\n".join(["set -e", *machine.write_files(root, script, images)]))
            if hardware.legacy:
                (root / machine.MACHINED).unlink(missing_ok=True)
            (root / "opt" / "tests" / "bench.json").write_text(json.dumps(bench))
            for program in programs:
                shutil.copy(program, root / "usr" / "local" / "bin")
            say(f"installed in {time.monotonic() - started:.0f} s")
            machine.make_disk(root, work / "root.raw")
            shutil.copy(max((root / "boot").glob("vmlinuz-*")), work / "vmlinuz")
            shutil.copy(max((root / "boot").glob("initrd.img-*")), work / "initrd")
        say(f"booting after {time.monotonic() - started:.0f} s")
        try:
            return machine.boot(work, pool_disk, console, hardware)
        finally:
            if output is not None:
                machine.read_output(work / "root.raw", output)
            say(f"ended after {time.monotonic() - started:.0f} s")


def main() -> int:
    """Print the JUnit XML of all results. Returns 1 if the machine did not finish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="bookworm")
    parser.add_argument("--pool-disk", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="the rows of the images on the pool's disk, as JSON")
    parser.add_argument("--kind", choices=KINDS, default="source", help="packaged, centre: install the Debian packages")
    parser.add_argument("--console", type=Path, help="where the machine's console goes (default: below .run)")
    parser.add_argument("--output", type=Path, help="a new folder for the files that tests keep, such as pages")
    parser.add_argument("--after-reboot", action="append", default=[], metavar="TEST", help="of a second boot")
    parser.add_argument("--memory", default=machine.MEMORY, help="of the machine (default: %(default)s)")
    parser.add_argument("--swap", default="", metavar="SIZE", help="a disk for swap, with zswap (default: none)")
    parser.add_argument("--legacy", action="store_true", help="boot with cgroup v1")
    parser.add_argument(
        "--bench", action="append", default=[], metavar="ARGUMENTS", help="measure by `slicectl bench ARGUMENTS`"
    )
    parser.add_argument(
        "--tool", action="append", default=[], metavar="FILE ARGUMENTS", help="measure by a program of tools/"
    )
    parser.add_argument("--program", action="append", type=Path, default=[], help="to copy to /usr/local/bin")
    parser.add_argument("tests", nargs="*", metavar="TEST", help="of the first boot; not needed with --bench or --tool")
    arguments = parser.parse_args()
    bench = [["slicectl", "bench", *shlex.split(one)] for one in arguments.bench]
    bench += [[f"tools/{name}", *more] for name, *more in map(shlex.split, arguments.tool)]
    if not arguments.tests and not bench:
        parser.error("name a TEST, a --bench or a --tool")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True)  # an error now, not after the machine has ended
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = (CACHE / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # one machine at a time, until this process ends
    for killed in CACHE.glob("run.*"):
        shutil.rmtree(killed)
    console = arguments.console or CACHE / f"console-{arguments.suite}.log"
    images = arguments.images.read_text()
    output = run(
        arguments.suite,
        arguments.pool_disk,
        images,
        arguments.tests or [BENCHES],
        arguments.after_reboot,
        console,
        kind=arguments.kind,
        output=arguments.output,
        hardware=machine.Hardware(arguments.memory, arguments.swap, arguments.legacy),
        bench=bench,
        programs=arguments.program,
    )
    whole, results = machine.merge(output)
    sys.stdout.write(results)
    boots = 2 if arguments.after_reboot else 1
    if whole == boots:
        return 0
    say(f"results of {whole} boots instead of {boots}; the console ({console}) ends with")
    say("\n".join(console.read_text(errors="replace").splitlines()[-60:]) if console.exists() else "nothing")
    return 1


if __name__ == "__main__":
    sys.exit(main())

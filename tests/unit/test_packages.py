"""tools/packages.txt suffices: all started programs are in its packages, their dependencies, or any Debian."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import prodhost
import pytest

from slicemgr.bench.peers.kinds import PEERS

REPOSITORY = Path(__file__).parent.parent.parent
ALWAYS_THERE = {"required", "important"}  # priorities of packages that every Debian has
PROGRAMS = {  # started programs by package, independent of other packages of the host
    "apt": ("apt-config", "apt-get"),
    "bash": ("bash",),
    "btrfs-progs": ("btrfs", "mkfs.btrfs"),
    "bubblewrap": ("bwrap",),
    "coreutils": ("chroot", "cp", "dd", "nice", "truncate"),
    "dash": ("sh",),
    "dpkg": ("dpkg-query",),
    "e2fsprogs": ("debugfs", "mke2fs"),
    "fdisk": ("sfdisk",),
    "gcc": ("gcc",),
    "git": ("git",),
    "iperf3": ("iperf3",),
    "iproute2": ("ip", "ss", "tc"),
    "iptables": ("iptables", "iptables-restore"),
    "libc-bin": ("ldd",),
    "libvirt-clients": ("virsh",),
    "libvirt-daemon": ("libvirtd", "virtlogd"),
    "mmdebstrap": ("mmdebstrap",),
    "mount": ("mount", "umount"),
    "mtools": ("mcopy", "mformat", "mmd"),
    "nftables": ("nft",),
    "nginx": ("nginx",),
    "openssh-client": ("ssh",),
    "qemu-utils": ("qemu-img",),
    "redis-tools": ("redis-benchmark", "redis-cli"),
    "supermin": ("supermin",),
    "tar": ("tar",),
    "util-linux": ("nsenter", "prlimit", "setpriv", "setsid", "unshare"),
    "wrk": ("wrk",),
}
OURS = {"python3", "slicectl"}  # of the virtual environment
NONE = {"at", "swap"}  # lists of other words
IN_GUESTS = {"redis-server"}  # its file is redis-check-rdb here
SYSTEMD = {"systemd-run"}  # started only where systemd runs


def listed() -> set[str]:
    text = (REPOSITORY / "tools" / "packages.txt").read_text()
    return {line.split("#")[0].strip() for line in text.splitlines()} - {""}


def started(source: str) -> Iterator[str]:
    """First words of the lists in a Python source that have an option, a path or something variable in them, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.elts[0], ast.Constant):
            word = node.elts[0].value
            plain = all(isinstance(one, ast.Constant) and re.fullmatch(r"\w*", str(one.value)) for one in node.elts)
            if isinstance(word, str) and re.fullmatch(r"[a-z][a-z0-9_.-]*", word) and not plain:
                yield word


def closure(wanted: Iterable[str], depends: Mapping[str, set[str]]) -> set[str]:
    """The packages with all that they need."""
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += depends.get(name, ())
    return found


def installed() -> tuple[dict[str, set[str]], set[str]]:
    """The dependencies of each installed package, and the packages that every Debian has."""
    form = "${Package}\t${Priority}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    told = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    depends: dict[str, set[str]] = {}
    basic = set()
    for line in told.splitlines():
        name, priority, provides, needs = line.split("\t")
        depends[name] = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", needs))
        for virtual in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]+)", provides):
            depends.setdefault(virtual, set()).add(name)
        if priority in ALWAYS_THERE:
            basic.add(name)
    return depends, basic


def package_of(program: str) -> str:
    """The Debian package of a program; "" if there is none."""
    path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        return ""
    places = {
        path,
        str(Path(path).resolve()),
        path.removeprefix("/usr"),
        str(Path(path).resolve()).removeprefix("/usr"),
    }
    told = subprocess.run(["dpkg", "-S", *sorted(places)], capture_output=True, text=True).stdout
    return told.partition(":")[0].split(",")[0]


def test_programs_come_from_the_list() -> None:
    sources = [*(REPOSITORY / "slicemgr").rglob("*.py"), *(REPOSITORY / "tools").glob("*.py")]
    sources += (path for folder in ("web", "migrations") for path in (REPOSITORY / folder).rglob("*.py"))
    programs = {word for path in sources for word in started(path.read_text())}
    peers = {program for peer in PEERS.values() for program in peer.programs}  # compared with where they are there
    known = {program for names in PROGRAMS.values() for program in names}
    assert programs - peers - OURS - NONE - SYSTEMD - IN_GUESTS == known, "say in PROGRAMS which package it comes with"
    depends, basic = installed()
    assert PROGRAMS.keys() <= closure(listed() | basic, depends), "a package is missing in tools/packages.txt"


@pytest.mark.parametrize(("package", "programs"), PROGRAMS.items())
def test_it_comes_with_that_package(package: str, programs: tuple[str, ...]) -> None:
    assert {package_of(program) for program in programs} == {package}


def test_a_program_that_nothing_listed_brings_is_noticed() -> None:
    assert list(started("run(['nmap', '-sn', network])")) == ["nmap"]
    assert list(started("kinds = ['lxc', 'kvm']")) == []
    depends = {"iptables": {"libc6"}, "nmap": {"libc6"}}
    assert "nmap" not in closure({"iptables"}, depends)
    assert closure({"iptables"}, depends) == {"iptables", "libc6"}


def test_the_list_names_packages_that_exist() -> None:
    assert listed() <= installed()[0].keys()


def test_a_production_node_gets_what_the_guide_installs_and_no_database_server() -> None:
    """The documented command and the tests of the production host end at the same line of the list."""
    commands = prodhost.commands_below(prodhost.INSTALL.read_text(), prodhost.SECTION)
    (install,) = [one for one in commands if one.startswith("apt-get ")]
    words = ["sh", "-c", f"echo {install.removeprefix('apt-get install ')}"]
    told = subprocess.run(words, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout
    assert told.split() == prodhost.package_list()
    assert listed() - set(told.split()) == {
        "chromium",
        "curl",
        "fonts-dejavu-core",
        "memcached",
        "nginx",
        "postgresql",
        "prometheus",
        "rabbitmq-server",
        "redis-tools",
        "strace",
        "stress-ng",
        "sysbench",
        "wrk",
    }

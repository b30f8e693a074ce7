"""tools/packages.txt is enough: what is started comes from it, from what it depends on, or from any Debian."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import prodhost

REPOSITORY = Path(__file__).parent.parent.parent
ALWAYS_THERE = {"required", "important"}  # priorities of what every installed Debian has


def listed() -> set[str]:
    text = (REPOSITORY / "tools" / "packages.txt").read_text()
    return {line.split("#")[0].strip() for line in text.splitlines()} - {""}


def started(source: str) -> Iterator[str]:
    """First words of the lists of words in a Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.elts[0], ast.Constant):
            word = node.elts[0].value
            if isinstance(word, str) and re.fullmatch(r"[a-z][a-z0-9_.-]*", word):
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
    """What each installed package needs, and which ones every Debian has."""
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
    """The package that a program on this machine came with; "" if it is none's."""
    path = shutil.which(program)
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
    programs = {word for path in sources for word in started(path.read_text())}
    assert programs >= {"qemu-img", "bwrap", "mmdebstrap", "iptables", "mkfs.btrfs", "mke2fs", "ip"}
    depends, basic = installed()
    enough = closure(listed() | basic, depends)
    missing = {}
    for program in sorted(programs):
        package = package_of(program)
        if package and package not in enough:
            missing[program] = package
    assert missing == {}


def test_a_program_that_nothing_listed_brings_is_noticed() -> None:
    assert list(started("run(['nmap', '-sn', network])")) == ["nmap"]
    depends = {"iptables": {"libc6"}, "nmap": {"libc6"}}
    assert "nmap" not in closure({"iptables"}, depends)
    assert closure({"iptables"}, depends) == {"iptables", "libc6"}


def test_the_list_names_packages_that_exist() -> None:
    assert listed() <= installed()[0].keys()


def test_a_production_node_gets_what_the_readme_installs_and_no_database_server() -> None:
    """The README's command and the tests of the production host end at the same line of the list."""
    commands = prodhost.readme_commands((REPOSITORY / "README.md").read_text(), prodhost.SECTION)
    (install,) = [one for one in commands if one.startswith("apt-get ")]
    words = ["sh", "-c", f"echo {install.removeprefix('apt-get install ')}"]
    told = subprocess.run(words, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout
    assert told.split() == prodhost.package_list()
    assert listed() - set(told.split()) == {
        "chromium",
        "fonts-dejavu-core",
        "nginx",
        "postgresql",
        "prometheus",
        "sysbench",
    }

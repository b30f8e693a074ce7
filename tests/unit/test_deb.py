"""The Debian packages: what is in them and what their scripts do, with a small environment in place of the real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import deb
import prodhost
import pytest

from slicemgr import __version__
from slicemgr.conversion import rabbitmq
from slicemgr.hub import broker_files

LINE = f"{sys.version_info[0]}.{sys.version_info[1]}"
PACKAGE = f"lib/python{LINE}/site-packages/slicemgr"
UNITS = {*deb.SERVICE_UNITS, *deb.NODE_UNITS}
ENABLED = {"slicemgr-web.service", *deb.NODE_UNITS}  # the others belong to a testbed of several nodes
CENTRE = UNITS - ENABLED
# In place of programs of the running system: systemctl knows which units are active, all write what they were asked.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$(basename "$0") $*" in
"systemctl --quiet is-active "*) [ -e "{active}/$3" ] ;;
"systemctl stop "*) shift; for unit in "$@"; do rm -f "{active}/$unit"; done ;;
"systemctl start "*) touch "{active}/$2" ;;
esac
"""


def make_environment(folder: Path) -> Path:
    """An environment as pip makes it, with a package that answers `slicemgr uninstall` and little else."""
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", folder], check=True)
    package = folder / PACKAGE
    (package / "libexec").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text("import sys\ndef main():\n    print(sys.prefix, *sys.argv[1:])\n")
    (package / "libexec" / "sliver-launcher").write_bytes(b"\x7fELF")
    (folder / "share/slicemgr").mkdir(parents=True)
    (folder / "share/slicemgr/slicemgr-0-py3-none-any.whl").write_bytes(b"wheel")
    for name in (*deb.PROGRAMS, "flask", "activate"):
        (folder / "bin" / name).write_text(f"#!{folder}/bin/python\nfrom slicemgr.cli import main\nmain()\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@dataclass(frozen=True)
class Debs:
    """old, new: the packages of two revisions."""

    old: list[Path]
    new: list[Path]


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Debs:
    work = tmp_path_factory.mktemp("deb")
    environment = make_environment(work / "environment")
    deb.relocate(environment, Path("/") / deb.HOME)
    both = [deb.build(environment, work / "dist", deb.values(revision)) for revision in ("1", "2")]
    return Debs(*both)


def fields(package: Path) -> Mapping[str, str]:
    text = deb.run("dpkg-deb", "--field", package)
    return dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE))


def contents(package: Path) -> dict[str, str]:
    """The mode, owner and group of each file by its path."""
    lines = [line.split(None, 5) for line in deb.run("dpkg-deb", "--contents", package).splitlines()]
    return {
        line[5].partition(" -> ")[0].removeprefix("."): f"{line[0]} {line[1]}" for line in lines if line[0][0] != "d"
    }


def control(package: Path, folder: Path) -> dict[str, str]:
    """The control files by their names."""
    deb.run("dpkg-deb", "--control", package, folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_a_node_needs_is_the_list_without_what_builds_and_tests() -> None:
    needed = set(deb.node_dependencies((deb.REPO / "tools/packages.txt").read_text()))
    assert needed < set(prodhost.package_list())
    assert {"libvirt-daemon-driver-lxc", "qemu-system-x86", "btrfs-progs", "iptables", "lxcfs"} <= needed
    assert needed.isdisjoint({"gcc", "python3-dev", "libvirt-dev", "git", "curl", "nginx", "chromium"})
    with pytest.raises(ValueError, match="only to build"):
        deb.node_dependencies("python3\ngcc\n")


def test_the_packages_depend_on_one_another_and_on_the_list(debs: Debs) -> None:
    program, service, node = map(fields, debs.new)
    version = program["Version"]
    assert program["Package"] == "slicemgr" and version.startswith(f"{__version__}-2~deb")
    assert f"python3 (>= {LINE})" in program["Depends"] and "python3 (<<" in program["Depends"]
    assert service["Depends"] == f"slicemgr (= {version})" and service["Architecture"] == "all"
    listed = deb.node_dependencies((deb.REPO / "tools/packages.txt").read_text())
    assert set(node["Depends"].split(", ")) == {f"slicemgr (= {version})", *listed, *deb.LIBRARIES}
    newer = subprocess.run(["dpkg", "--compare-versions", fields(debs.old[0])["Version"], "lt", version])
    assert newer.returncode == 0


def test_each_file_has_its_place_and_belongs_to_root(debs: Debs) -> None:
    program, service, node = map(contents, debs.new)
    home = f"/{deb.HOME}"
    assert {"/usr/bin/slicectl", "/usr/bin/slicemgr", "/etc/slicemgr/slicemgr.toml"} <= program.keys()
    assert f"{home}/share/slicemgr/slicemgr-0-py3-none-any.whl" in program
    assert {name.removeprefix(home) for name in program if name.startswith(f"{home}/bin/")} == {
        f"/bin/{name}" for name in (*deb.PROGRAMS, "python", "python3")
    }
    for package, units in ((service, deb.SERVICE_UNITS), (node, deb.NODE_UNITS)):
        assert {Path(one).name for one in package if one.endswith(".service")} == set(units)
    assert "/usr/lib/sysusers.d/slicemgr-service.conf" in service
    places = {
        "/usr/lib/sysctl.d/90-slicemgr.conf", "/usr/lib/modules-load.d/slicemgr.conf",
        "/usr/lib/sysusers.d/slicemgr-node.conf", f"/{deb.LAUNCHER}",
    }  # fmt: skip
    assert places <= node.keys() and node[f"/{deb.LAUNCHER}"].startswith("-rwxr-xr-x")
    for one in (program, service, node):
        assert {mode.split()[1] for mode in one.values()} == {"root/root"}
        assert [name for name, mode in one.items() if mode[0] == "-" and mode[8] == "w"] == []
    modules = [name for name in program if name.endswith(".py")]
    assert len(modules) == len([name for name in program if name.endswith(".pyc")]) > 0


def test_settings_are_a_conffile_and_scripts_are_valid(debs: Debs, tmp_path: Path) -> None:
    for package in debs.new:
        found = control(package, tmp_path / package.stem)
        assert ("conffiles" in found) == package.name.startswith("slicemgr_")
        assert found.get("conffiles", "/etc/slicemgr/slicemgr.toml\n") == "/etc/slicemgr/slicemgr.toml\n"
        assert tuple(name for name in deb.SCRIPTS if name in found) == deb.SCRIPTS
        assert not re.search(r"@[A-Z]+@", "".join(found.values()))
        for name in deb.SCRIPTS:
            checked = subprocess.run(["sh", "-n"], input=found[name], text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
            assert os.access(tmp_path / package.stem / name, os.X_OK)


class Host:
    """A host below a folder, on which dpkg works and runs the scripts.

    active: the units that run. asked: what the scripts of the last `dpkg` asked of the system.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.log, self.active = folder / "root", folder / "log", folder / "active"
        for one in (self.root / "run/systemd/system", self.active, self.root / "var/lib/dpkg", folder / "bin"):
            one.mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "deb-systemd-helper"):
            (folder / "bin" / name).write_text(STUB.format(log=self.log, active=self.active))
            (folder / "bin" / name).chmod(0o755)
        self.asked: list[str] = []
        self.path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"

    def dpkg(self, *words: str | Path) -> list[str]:
        """Run dpkg. Returns what its scripts asked of the system."""
        self.log.write_text("")
        options = (f"--root={self.root}", "--force-script-chrootless", "--force-depends", "--force-not-root")
        done = subprocess.run(
            ["dpkg", *options, *words], env={"PATH": self.path, "LC_ALL": "C"}, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.asked = self.log.read_text().splitlines()
        return self.asked

    def path_of(self, name: str) -> Path:
        return self.root / name

    def start(self) -> None:
        for unit in UNITS:
            (self.active / unit).touch()

    def running(self) -> set[str]:
        return {path.name for path in self.active.iterdir()}


@pytest.fixture
def host(debs: Debs, tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.dpkg("--install", *debs.old)
    return made


def test_an_installation_makes_users_and_enables_units_but_starts_none(host: Host) -> None:
    asked = host.asked
    for name in ("slicemgr.conf", "slicemgr-node.conf", "slicemgr-service.conf"):
        assert f"systemd-sysusers --root={host.root} {name}" in asked
    enabled = [one.split()[2:] for one in asked if one.startswith("deb-systemd-helper enable ")]
    assert {unit for units in enabled for unit in units} == ENABLED
    assert not [one for one in asked if one.startswith("systemctl start")] and host.running() == set()
    for unit in UNITS:
        text = host.path_of(f"usr/lib/systemd/system/{unit}").read_text()
        assert "/opt/" not in text and f"/{deb.HOME}/bin/slicemgr" in text
    assert "kombu" in (deb.REPO / "requirements/node.txt").read_text(), "what hub and link need is in the packages"


def test_an_upgrade_stops_what_runs_and_starts_it_again(host: Host, debs: Debs) -> None:
    host.start()
    settings = host.path_of("etc/slicemgr/slicemgr.toml")
    settings.write_text("# mine\n")
    asked = host.dpkg("--install", *debs.new)
    for unit in UNITS:
        assert asked.index(f"systemctl stop {unit}") < asked.index(f"systemctl start {unit}")
    assert host.running() == UNITS and settings.read_text() == "# mine\n"
    assert not host.path_of("run/slicemgr-upgrade").exists()


def test_an_upgrade_starts_nothing_that_did_not_run(host: Host, debs: Debs) -> None:
    (host.active / "slicemgr-web.service").touch()
    host.dpkg("--install", *debs.new)
    assert host.running() == {"slicemgr-web.service"}


def state(host: Host) -> Path:
    """The database of a node that worked."""
    database = host.path_of("var/lib/slicemgr/db/slicemgr.db")
    database.parent.mkdir(parents=True)
    database.write_text("rows")
    return database


NAMES = ("slicemgr-node", "slicemgr-service", "slicemgr")


# In place of the program: it notes its arguments and whether the pool was there.
PROGRAM = """
import pathlib, sys
home = pathlib.Path(sys.prefix)
there = (home.parent / "pool").is_dir() and pathlib.Path(sys.argv[2]).read_text() == "# mine\\n"
with open({log!r}, "a") as log:
    print("slicemgr", *sys.argv[3:], there, file=log)
"""
DELETED = "slicemgr uninstall --slivers True"


@pytest.fixture
def noted(host: Host) -> Host:
    program = host.path_of(f"{deb.HOME}/bin/slicemgr")
    program.unlink()
    program.write_text(PROGRAM.format(log=str(host.log)))
    host.path_of("etc/slicemgr/slicemgr.toml").write_text("# mine\n")
    host.path_of("var/lib/slicemgr/pool").mkdir(parents=True)
    host.start()
    return host


def test_a_removal_keeps_slivers_settings_and_data(noted: Host) -> None:
    database = state(noted)
    asked = noted.dpkg("--remove", *NAMES)
    assert DELETED not in asked and noted.running() == set()
    assert database.exists() and noted.path_of("etc/slicemgr/slicemgr.toml").exists()
    assert not noted.path_of("usr/bin/slicectl").is_symlink()


@pytest.mark.parametrize("order", [NAMES, tuple(reversed(NAMES))])
def test_a_purge_takes_all_away(noted: Host, order: tuple[str, ...]) -> None:
    """As apt does it: it removes, and then purges in any order."""
    state(noted)
    asked = noted.dpkg("--remove", *NAMES) + noted.dpkg("--purge", *order)
    assert asked.index("systemctl stop slicemgr-agent.service slicemgr-link.service") < asked.index(DELETED)
    assert asked.count(DELETED) == 1
    left = [path for path in noted.root.rglob("*slicemgr*") if "var/lib/dpkg" not in str(path)]
    assert left == []


@pytest.mark.parametrize("before", ["", "NODENAME=other\n"])
def test_a_purge_leaves_the_broker_as_it_was(noted: Host, before: str) -> None:
    """What `slicemgr make-centre` writes into the folders of RabbitMQ and systemd."""
    settings, epmd = noted.path_of("etc/rabbitmq/rabbitmq-env.conf"), noted.path_of("etc/systemd/system/epmd.socket.d")
    for path in (settings.parent, epmd):
        path.mkdir(parents=True)
    own = rabbitmq.FOLDER / broker_files.ENVIRONMENT
    settings.write_text(f"{before}[ ! -e {own} ] || . {own}\n")
    (epmd / rabbitmq.EPMD_FILE.name).write_text("[Socket]\n")
    noted.dpkg("--remove", *NAMES)
    assert str(own) in settings.read_text(), "a removal keeps settings"
    noted.dpkg("--purge", *NAMES)
    assert not epmd.exists()
    assert (settings.read_text() if settings.exists() else "") == before


def test_a_second_installation_keeps_no_program_of_before(noted: Host, debs: Debs) -> None:
    database = state(noted)
    noted.dpkg("--remove", *NAMES)
    assert noted.path_of("var/lib/slicemgr/removed/bin/slicemgr").exists()
    noted.dpkg("--install", *debs.new)
    assert database.exists() and not noted.path_of("var/lib/slicemgr/removed").exists()


def test_the_program_works_at_its_place(debs: Debs, tmp_path: Path) -> None:
    """Its first line names the interpreter at the place of installation, which finds the modules beside it."""
    deb.run("dpkg-deb", "--extract", debs.new[0], tmp_path)
    program = tmp_path / deb.HOME / "bin/slicectl"
    assert program.read_text().startswith(f"#!/{deb.HOME}/bin/python3\n")
    shown = deb.run(tmp_path / deb.HOME / "bin/python3", program, "version")
    assert shown.split() == [str(tmp_path / deb.HOME), "version"]


def test_an_environment_of_another_place_is_refused(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment")
    (environment / "bin/slicectl").write_text("#!/bin/sh\nexec python\n")
    with pytest.raises(ValueError, match="slicectl begins with '#!/bin/sh'"):
        deb.relocate(environment, Path("/") / deb.HOME)


def test_the_environment_of_the_builder_does_not_hide_modules_from_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clone on PYTHONPATH, pip considers slicemgr installed and leaves it out of the package."""
    monkeypatch.setenv("PYTHONPATH", str(deb.REPO))
    shown = deb.run("/usr/bin/python3", "-c", "import sys; print(*sys.path, sep='\\n')")
    assert str(deb.REPO) not in shown.splitlines()

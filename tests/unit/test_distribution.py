"""The sdist, the wheels that are built only from it, for a node and for clients, and what is installed from them."""

from __future__ import annotations

import email
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

import prodhost
import pytest
from affected import LINKED
from bare_service import KEY, Service
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from werkzeug.serving import make_server

from slicemgr import __version__
from slicemgr.store import schema
from slicemgr.web import create_app

PROGRAMS = {
    *(f"libexec/sliver-{name}" for name in ("balloons", "counter", "latency", "launcher", "probe", "reclaim")),
    *(f"libexec/sliver-{name}" for name in ("throttle", "view")),
    "images/init/init",
    "images/init/sshd-listener",
}
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# The folders of what the README copies by hand, of the documents that it links to, and of the programs in C.
BESIDE = (
    *("docs", "requirements", "tools/nginx", "tools/units"),
    *sorted({str(one.parent.relative_to(prodhost.REPO)) for one in prodhost.REPO.glob("tools/*/*.c")}),
)


PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-index", "--no-deps")


def attempt(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that can import only its own sources."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLICEMGR_"))}
    settings = {**inherited, **environment}
    return subprocess.run(words, cwd=cwd, env=settings, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """The output of such a program. Raises AssertionError if it fails."""
    done = attempt(*words, cwd=cwd, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_sdist(clone: Path, target: Path) -> Path:
    target.mkdir()
    run(sys.executable, "-c", SDIST, target, cwd=clone)
    (sdist,) = target.iterdir()
    return sdist


def members(sdist: Path) -> dict[str, int]:
    """Path and mode of each file, without the folder that all are in."""
    with tarfile.open(sdist) as archive:
        found = [one for one in archive if not one.isdir()]
        assert all(one.isfile() for one in found)
        return {PurePosixPath(*PurePosixPath(one.name).parts[1:]).as_posix(): one.mode for one in found}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Released:
    """clone: the tracked files, as in a clone."""

    clone: Path
    sdist: Path

    def sources(self) -> Mapping[str, Path]:
        """The files of the package by their path in it: those of slicemgr/ and of what it has links to."""
        found = {name: self.clone / "slicemgr" / name for name in files(self.clone / "slicemgr")}
        for folder in LINKED:
            found |= {f"{folder}/{name}": self.clone / folder / name for name in files(self.clone / folder)}
        return found


def make_wheel(source: Path, work: Path, **environment: str) -> Path:
    words = ("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", work / "wheel")
    run(*PIP, *words, source, cwd=work, **environment)
    (wheel,) = (work / "wheel").iterdir()
    return wheel


def make_environment(wheel: Path, dependencies: Path, target: Path) -> Path:
    """A virtual environment with the wheel, which imports its dependencies from a folder."""
    run(sys.executable, "-m", "venv", "--without-pip", target, cwd=wheel.parent)
    run(*PIP, "--python", target / "bin" / "python", "install", *OFFLINE, wheel, cwd=wheel.parent)
    (own,) = target.glob("lib/python3*/site-packages")
    # A .pth file in a folder that another one names is not read: the editable install stays out.
    (own / "dependencies.pth").write_text(f"{dependencies}\n")
    return target


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    work = tmp_path_factory.mktemp("distribution")
    prodhost.copy_sources(work / "clone")
    return Released(work / "clone", make_sdist(work / "clone", work / "sdist"))


@pytest.fixture(scope="module")
def environment(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, as on a node.

    Nothing is downloaded: the dependencies are those of the environment that runs the tests.
    """
    work = tmp_path_factory.mktemp("node")
    wheel = make_wheel(released.sdist, work, SLICEMGR_PROGRAMS="1")
    return make_environment(wheel, Path(sysconfig.get_path("purelib")), work / "environment")


@dataclass(frozen=True)
class Laptop:
    """A client's computer. wheel: pure Python. environment: with the wheel and its dependencies without extras."""

    wheel: Path
    environment: Path

    def attempt(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, where no other program exists, thus no compiler."""
        home = str(self.environment.parent)
        where = {"PATH": str(self.environment / "bin"), "HOME": home, **environment}
        return attempt(self.environment / "bin" / words[0], *words[1:], cwd=Path(home), **where)

    def run(self, *words: str, **environment: str) -> str:
        done = self.attempt(*words, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def base_dependencies(wheel: Path) -> dict[str, Distribution]:
    """What pip installs with the wheel without extras, from the environment that runs the tests."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        wanted = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found: dict[str, Distribution] = {}
    while wanted:
        one = Requirement(wanted.pop())
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            wanted += found[name].requires or []
    return found


@pytest.fixture(scope="module")
def laptop(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    work = tmp_path_factory.mktemp("laptop")
    (work / "no programs").mkdir()
    wheel = make_wheel(released.sdist, work, PATH=str(work / "no programs"))
    folder = work / "dependencies"
    folder.mkdir()
    for one in base_dependencies(wheel).values():
        for top in {path.parts[0] for path in one.files or [] if path.parts[0] not in ("..", "__pycache__")}:
            (folder / top).symlink_to(Path(str(one.locate_file(top))))
    return Laptop(wheel, make_environment(wheel, folder, work / "environment"))


def test_the_sdist_has_all_that_builds_and_installs(released: Released) -> None:
    found = members(released.sdist)
    wanted = {f"{folder}/{name}" for folder in BESIDE for name in files(released.clone / folder) if name != "build.in"}
    wanted |= {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "setup.py", "tools/packages.txt"}
    wanted |= {f"slicemgr/{name}" for name in released.sources()}
    assert wanted - found.keys() == set()
    assert found["slicemgr/images/init/systemd"] & 0o111


def test_the_sdist_has_nothing_twice_and_nothing_compiled(released: Released) -> None:
    found = members(released.sdist)
    assert [name for name in found if name.startswith((*(f"{one}/" for one in LINKED), "tests/", "build/"))] == []
    compiled = ("libexec/", "init/init", "sshd-listener", ".pyc", ".o", ".so")
    assert [name for name in found if "libexec" in name or name.endswith(compiled)] == []


@pytest.mark.long
def test_without_its_list_an_sdist_lacks_the_programs_in_c(tmp_path: Path) -> None:
    """The control of the tests above."""
    prodhost.copy_sources(tmp_path / "clone")
    (tmp_path / "clone" / "MANIFEST.in").unlink()
    found = members(make_sdist(tmp_path / "clone", tmp_path / "sdist"))
    assert not any(name.endswith(".c") for name in found)


def package_in(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages/slicemgr")
    return found


@pytest.mark.long
def test_the_package_is_installed_whole(released: Released, environment: Path) -> None:
    """Templates, static files, recipes, migrations and the programs, from the wheel."""
    package, sources = package_in(environment), released.sources()
    assert {"web/templates/base.html", "web/static/app.css", "images/debian-12/recipe.toml"} <= sources.keys()
    installed = {name for name in files(package) if not name.endswith(".pyc")}
    assert installed == {*sources, *PROGRAMS}
    assert [name for name, path in sources.items() if (package / name).read_bytes() != path.read_bytes()] == []
    executable = {name for name in installed if os.access(package / name, os.X_OK)}
    assert executable >= PROGRAMS
    assert all((package / name).read_bytes().startswith(b"\x7fELF") for name in PROGRAMS)


@pytest.mark.long
def test_the_installed_program_runs_and_makes_a_database(environment: Path, tmp_path: Path) -> None:
    python, programs = environment / "bin" / "python", environment / "bin"
    place = run(python, "-c", "import slicemgr.web, slicemgr.migrations as m; print(m.__file__)", cwd=tmp_path)
    assert Path(place.strip()) == package_in(environment) / "migrations" / "__init__.py"
    assert run(programs / "slicectl", "version", cwd=tmp_path).splitlines()[0] == __version__
    settings, database = tmp_path / "slicemgr.toml", tmp_path / "testbed.db"
    settings.write_text(f'[store]\nurl = "sqlite:///{database}"\n')
    run(programs / "slicemgr", "--config", settings, "db", "upgrade", cwd=tmp_path)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(schema.HEAD,)]
        assert connection.execute("SELECT name FROM users").fetchall() == [(schema.ADMIN,)]
    connection.close()


@pytest.mark.long
def test_the_wheel_of_a_client_is_pure_python_and_needs_little(laptop: Laptop) -> None:
    assert laptop.wheel.name == f"slicemgr-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(laptop.wheel) as archive:
        names = archive.namelist()
        assert [one for one in names if archive.read(one).startswith(b"\x7fELF")] == []
    assert "slicemgr/client/__init__.py" in names and not any("libexec" in one for one in names)
    direct = {"click", "h11", "pyyaml", "rich", "wsproto"}
    indirect = {"markdown-it-py", "mdurl", "pygments"}  # of rich
    assert base_dependencies(laptop.wheel).keys() == direct | indirect


@pytest.mark.long
def test_files_of_an_earlier_build_are_not_in_the_wheel(tmp_path: Path) -> None:
    """Neither the programs that `make setup` built in the clone, nor a module that a newer version no longer has."""
    source = tmp_path / "clone"
    prodhost.copy_sources(source)
    left = source / "build" / "lib" / "slicemgr" / "left.py"
    compiled = ("libexec/sliver-probe", "images/init/init", "images/init/sshd-listener")
    for path in (left, *(source / "slicemgr" / name for name in compiled)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of before")
    with zipfile.ZipFile(make_wheel(source, tmp_path)) as archive:
        found = [one for one in archive.namelist() if "libexec" in one or one.endswith(("left.py", *compiled))]
    assert found == []


@pytest.mark.long
def test_slicectl_runs_with_the_base_dependencies_alone(laptop: Laptop) -> None:
    assert laptop.run("slicectl", "version").splitlines()[0] == __version__
    listed = laptop.run("slicectl", "--help")
    assert "create" in listed and "bench" in listed
    for command in ("create", "ssh", "console", "bench", "audit", "image"):
        assert f"slicectl {command}" in laptop.run("slicectl", command, "--help")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("slicemgr", "db", "upgrade"), "node"),
        (("slicemgr", "doctor"), "node"),
        (("slicectl", "audit"), "bench"),
    ],
)
def test_a_command_without_its_extra_names_it(
    laptop: Laptop, service: Mapping[str, str], words: tuple[str, ...], extra: str
) -> None:
    done = laptop.attempt(*words, **service)
    assert done.returncode == 7 and len(done.stderr.splitlines()) == 1
    assert re.search(rf"needs the Python package \w+, which is not .* 'slicemgr\[{extra}\]'", done.stderr)


@pytest.fixture
def service(tmp_path: Path, laptop: Laptop) -> Iterator[Mapping[str, str]]:
    """The settings of a client of a running service with one slice, which offers the wheel."""
    with Service(tmp_path) as made:
        made.create()
        app = create_app(made.config, made.store)
        app.config["WHEELS"] = laptop.wheel.parent
        server = make_server("127.0.0.1", 0, app, threaded=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield {"SLICEMGR_URL": url, "SLICEMGR_TOKEN": made.token()}
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_the_client_of_a_laptop_calls_the_service(laptop: Laptop, service: Mapping[str, str], tmp_path: Path) -> None:
    assert laptop.run("slicectl", "list", "--no-header", "-c", "name", **service) == "exp\n"
    (tmp_path / "key.pub").write_text(f"{KEY}\n")
    create = ("slicectl", "create", "more", "--type", "lxc", "--image", "debian-12", "--no-wait")
    laptop.run(*create, "--ssh-key", str(tmp_path / "key.pub"), **service)
    code = "from slicemgr.client import Client; print([one['name'] for one in Client.local().slices.list()])"
    assert laptop.run("python", "-c", code, **service) == "['exp', 'more']\n"


@pytest.mark.long
def test_pip_installs_the_client_from_the_service(service: Mapping[str, str], laptop: Laptop, tmp_path: Path) -> None:
    """By the command that the sign-in page shows."""
    with urllib.request.urlopen(f"{service['SLICEMGR_URL']}/sign-in") as answer:
        found = re.search(r'data-copy="pip install ([^"]+)"', answer.read().decode())
    assert found and found[1] == f"{service['SLICEMGR_URL']}/client/{laptop.wheel.name}"
    target = tmp_path / "target"
    run(*PIP, "install", *OFFLINE, "--target", target, found[1], cwd=tmp_path, no_proxy="127.0.0.1")
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import slicemgr; print(slicemgr.__file__)"
    assert laptop.run("python", "-c", code) == f"{target}/slicemgr/__init__.py\n"


# What Python has on Linux and not on macOS, of what this project uses.
_LINUX_ONLY = """
import os, select, signal, socket
for module, names in {
    os: "O_PATH O_TMPFILE memfd_create pidfd_open sched_getaffinity sched_setaffinity setns unshare splice eventfd "
        "getxattr setxattr posix_fallocate posix_fadvise setresuid setresgid getrandom",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK AF_PACKET AF_VSOCK SO_PEERCRED SO_BINDTODEVICE TCP_USER_TIMEOUT",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""


@pytest.mark.long
def test_the_client_needs_nothing_that_only_linux_has(
    laptop: Laptop, service: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_LINUX_ONLY)
    there = {**service, "PYTHONPATH": str(tmp_path)}
    code = "import os, socket, slicemgr.client; print(hasattr(os, 'memfd_create'), hasattr(socket, 'SOCK_CLOEXEC'))"
    assert laptop.run("python", "-c", code, **there) == "False False\n"
    assert laptop.run("slicectl", "list", "--no-header", "-c", "name", **there) == "exp\n"
    for command in ("create", "ssh", "console", "top", "bench", "login"):
        laptop.run("slicectl", command, "--help", **there)

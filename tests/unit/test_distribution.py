"""The sdist, the wheel that is built only from it, and the program that is installed from that wheel."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import prodhost
import pytest
from affected import LINKED

from slicemgr import __version__
from slicemgr.store import schema

PROGRAMS = {"sliver-launcher", "sliver-probe", "sliver-view"}
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# The folders of what the README copies by hand, of the programs in C, and of the documents that it links to.
BESIDE = ("docs", "requirements", "tools/launcher", "tools/nginx", "tools/probe", "tools/units", "tools/view")


def run(*words: str | Path, cwd: Path) -> str:
    """The output of a program that can import only its own sources. Raises AssertionError if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
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
class Built:
    """clone: the tracked files, as in a clone. environment: a virtual environment with the wheel."""

    clone: Path
    sdist: Path
    environment: Path

    @property
    def package(self) -> Path:
        (found,) = self.environment.glob("lib/python3*/site-packages/slicemgr")
        return found

    def sources(self) -> Mapping[str, Path]:
        """The files of the package by their path in it: those of slicemgr/ and of what it has links to."""
        found = {name: self.clone / "slicemgr" / name for name in files(self.clone / "slicemgr")}
        for folder in LINKED:
            found |= {f"{folder}/{name}": self.clone / folder / name for name in files(self.clone / folder)}
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Nothing is downloaded: the dependencies are those of the environment that runs the tests."""
    work = tmp_path_factory.mktemp("distribution")
    clone, environment = work / "clone", work / "environment"
    prodhost.copy_sources(clone)
    sdist = make_sdist(clone, work / "sdist")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    offline = ("--no-index", "--no-deps")
    run(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", work / "wheel", sdist, cwd=work)
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=work)
    (wheel,) = (work / "wheel").iterdir()
    run(*pip, "--python", environment / "bin" / "python", "install", *offline, wheel, cwd=work)
    (own,) = environment.glob("lib/python3*/site-packages")
    # A .pth file in a folder that another one names is not read: the editable install stays out.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Built(clone, sdist, environment)


def test_the_sdist_has_all_that_builds_and_installs(built: Built) -> None:
    found = members(built.sdist)
    wanted = {f"{folder}/{name}" for folder in BESIDE for name in files(built.clone / folder) if name != "build.in"}
    wanted |= {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "setup.py", "tools/packages.txt"}
    wanted |= {f"slicemgr/{name}" for name in built.sources()}
    assert wanted - found.keys() == set()
    assert found["slicemgr/images/init/init"] & 0o111


def test_the_sdist_has_nothing_twice_and_nothing_compiled(built: Built) -> None:
    found = members(built.sdist)
    assert [name for name in found if name.startswith((*(f"{one}/" for one in LINKED), "tests/", "build/"))] == []
    assert [name for name in found if "libexec" in name or name.endswith((".pyc", ".o", ".so"))] == []


def test_without_its_list_an_sdist_lacks_the_programs_in_c(built: Built, tmp_path: Path) -> None:
    """The control of the tests above."""
    prodhost.copy_sources(tmp_path / "clone")
    (tmp_path / "clone" / "MANIFEST.in").unlink()
    found = members(make_sdist(tmp_path / "clone", tmp_path / "sdist"))
    assert not any(name.endswith(".c") for name in found)


def test_the_package_is_installed_whole(built: Built) -> None:
    """Templates, static files, recipes, migrations and the programs, from the wheel."""
    package, sources = built.package, built.sources()
    assert {"web/templates/base.html", "web/static/app.css", "images/debian-12/recipe.toml"} <= sources.keys()
    installed = {name for name in files(package) if not name.endswith(".pyc")}
    assert installed == {*sources, *(f"libexec/{name}" for name in PROGRAMS)}
    assert [name for name, path in sources.items() if (package / name).read_bytes() != path.read_bytes()] == []
    executable = {name for name in installed if os.access(package / name, os.X_OK)}
    assert executable >= {"images/init/init", *(f"libexec/{name}" for name in PROGRAMS)}
    assert all((package / "libexec" / name).read_bytes().startswith(b"\x7fELF") for name in PROGRAMS)


def test_the_installed_program_runs_and_makes_a_database(built: Built, tmp_path: Path) -> None:
    python, programs = built.environment / "bin" / "python", built.environment / "bin"
    place = run(python, "-c", "import slicemgr.web, slicemgr.migrations as m; print(m.__file__)", cwd=tmp_path)
    assert Path(place.strip()) == built.package / "migrations" / "__init__.py"
    assert run(programs / "slicectl", "version", cwd=tmp_path).splitlines()[0] == __version__
    settings, database = tmp_path / "slicemgr.toml", tmp_path / "testbed.db"
    settings.write_text(f'[store]\nurl = "sqlite:///{database}"\n')
    run(programs / "slicemgr", "--config", settings, "db", "upgrade", cwd=tmp_path)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(schema.HEAD,)]
        assert connection.execute("SELECT name FROM users").fetchall() == [(schema.ADMIN,)]
    connection.close()

"""An earlier version of slicemgr from the history, with the dependencies of this clone's virtual environment."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import demo
import pytest
from nodebox_linux import locked

# The last commit in which nodes opened no consoles, exchanged no images and reported no usage.
BEFORE = "9da2be31c0bea7e6245ceaff2b3a442cd7467d34"
BUILD = demo.REPO / "build"  # users other than root read it


def venv(commit: str = BEFORE) -> Path:
    """A virtual environment with the version, made once. Skips the test if the history does not have the commit."""
    made = BUILD / f"before-{commit[:12]}"
    BUILD.mkdir(exist_ok=True)
    with locked(demo.RUN / "before"):
        if not (made / "complete").exists():
            _make(commit, made)
    return made / "venv"


def extract(commit: str, folder: Path, *names: str) -> None:
    """Write files and folders of a commit, or all of it, below a folder. Skips the test without such a commit."""
    packed = subprocess.run(["git", "-C", demo.REPO, "archive", commit, *names], capture_output=True)
    if packed.returncode != 0:
        pytest.skip(f"the history has no commit {commit[:12]}: a source archive, or a shallow clone")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder)


def _make(commit: str, folder: Path) -> None:
    extract(commit, folder / "source")
    made, python = folder / "venv", [sys.executable, "-m"]
    subprocess.run([*python, "venv", "--clear", "--without-pip", str(made)], check=True)
    ours = sysconfig.get_path("purelib")  # its own .pth file, which names this version, has no effect from there
    (Path(sysconfig.get_path("purelib", vars={"base": str(made)})) / "dependencies.pth").write_text(f"{ours}\n")
    words = ["--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat", "--editable", "."]
    subprocess.run(
        [*python, "pip", "--python", str(made), "install", "--quiet", "--disable-pip-version-check", *words],
        cwd=folder / "source",
        env={**os.environ, "SLICEMGR_PROGRAMS": "1"},
        check=True,
    )
    (folder / "complete").touch()

"""A clone in a directory that only root may enter, such as Debian's /root: who can reach the program there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from demo import REPO

from slicemgr import config as configs
from slicemgr.errors import Refused
from slicemgr.web import server

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Two directories below one that others cannot enter."""
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed/beside").write_text("private")
    made = tmp_path / "closed/of/slicemgr"
    (made / "tools").mkdir(parents=True)
    shutil.copy(REPO / "tools/reachable", made / "tools")
    (made / "README.md").write_text("readable")
    return made


def run(clone: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([clone / "tools/reachable", *words], capture_output=True, text=True)


def test_another_user_reads_the_clone_and_nothing_beside_it(clone: Path) -> None:
    found = run(clone, *NOBODY, "cat", clone / "README.md")
    assert (found.returncode, found.stdout) == (0, "readable")
    assert run(clone, "ls", clone.parent.parent).stdout.split() == ["of"]
    assert run(clone, "touch", clone / "made").returncode == 0
    assert (clone / "made").exists(), "the clone is the same"
    control = subprocess.run([*NOBODY, "cat", clone / "README.md"], capture_output=True, text=True)
    assert control.returncode != 0 and "Permission denied" in control.stderr


def test_a_clone_that_is_closed_itself_is_refused(clone: Path) -> None:
    clone.chmod(0o700)
    found = run(clone, "true")
    assert found.returncode == 1
    assert f"chmod -R go+rX {clone}" in found.stderr


def test_the_web_process_names_the_directory(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outermost = next(one for one in (*reversed(clone.parents), clone) if not one.stat().st_mode & 0o001)
    assert server.closed_to(65534, 65534, clone) == outermost
    assert server.closed_to(65534, 65534, Path("/usr/bin")) is None
    owner = clone.stat()
    assert server.closed_to(owner.st_uid, owner.st_gid, clone) is None
    monkeypatch.setattr(server, "PACKAGE", clone)
    monkeypatch.setattr(os, "setuid", lambda _: pytest.fail("it became the user"))
    monkeypatch.setattr(os, "setgroups", lambda _: None)
    monkeypatch.setattr(os, "setgid", lambda _: None)
    places = "".join(f'{name} = "{tmp_path}/{name}"\n' for name in ("state_dir", "run_dir", "pool"))
    text = f'[node]\n{places}[web]\nuser = "65534:65534"\n'
    (tmp_path / "slicemgr.toml").write_text(text)
    with pytest.raises(Refused, match=f"web.user: the user 65534:65534 cannot enter {outermost}"):
        server.drop_root(configs.load(tmp_path / "slicemgr.toml"))

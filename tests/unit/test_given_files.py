"""Files that root transfers to the web process and to QEMU are never files that an attacker in them planted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slicemgr.drivers.storage import machine_disk
from slicemgr.errors import Failed, Refused
from slicemgr.web import server

USER = 64125  # a UID that no account uses


def owner(path: Path) -> int:
    return path.lstat().st_uid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's that the web process would like to have."""
    path = tmp_path / "secret"
    path.write_text("root's own")
    path.chmod(0o600)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of the web process."""
    path = tmp_path / "db"
    path.mkdir()
    os.chown(path, USER, USER)
    return path


def test_the_web_process_gets_its_files(folder: Path) -> None:
    (folder / "slicemgr.db").write_text("rows")
    (folder / "experiment").mkdir()
    server.own(folder, USER, USER)
    assert {owner(path) for path in (folder, *folder.iterdir())} == {USER}
    assert mode(folder) == 0o700


def test_what_it_planted_gives_it_nothing_of_roots(folder: Path, secret: Path) -> None:
    (folder / "symlink").symlink_to(secret)
    os.link(secret, folder / "hardlink")
    os.mkfifo(folder / "fifo")
    server.own(folder, USER, USER)
    assert owner(secret) == 0 and mode(secret) == 0o600
    assert owner(folder / "fifo") == 0


def test_a_plain_chown_gives_away_what_a_hard_link_names(folder: Path, secret: Path) -> None:
    """The control: the former implementation."""
    os.link(secret, folder / "hardlink")
    for path in (folder, *folder.iterdir()):
        os.chown(path, USER, USER, follow_symlinks=False)
    assert owner(secret) == USER


def test_a_directory_that_another_user_made_a_link_is_refused(tmp_path: Path, secret: Path) -> None:
    link = tmp_path / "uploads"
    link.symlink_to(tmp_path)
    os.chown(link, USER, USER, follow_symlinks=False)
    with pytest.raises(Refused, match="symbolic link"):
        server.own(link, USER, USER)
    assert owner(tmp_path) == owner(secret) == 0
    link.unlink()
    (tmp_path / "larger-disk").mkdir()
    link.symlink_to(tmp_path / "larger-disk")  # root's own choice
    server.own(link, USER, USER)
    assert owner(tmp_path / "larger-disk") == USER


@pytest.mark.parametrize("plant", ["symlink", "hardlink", "fifo"])
def test_a_disk_that_is_something_else_is_not_given_to_qemu(tmp_path: Path, secret: Path, plant: str) -> None:
    disk = tmp_path / "disk.qcow2"
    match plant:
        case "symlink":
            disk.symlink_to(secret)
        case "hardlink":
            os.link(secret, disk)
        case _:
            os.mkfifo(disk)
    with pytest.raises((Failed, OSError)):
        machine_disk.give_to(disk, USER, USER, 0o666)
    assert owner(secret) == 0 and mode(secret) == 0o600
    assert machine_disk.virtual_size(disk) is None, "nothing is waited for"


def test_a_disk_is_given_to_qemu(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    machine_disk.give_to(disk, USER, USER + 1, 0o600)
    held = disk.stat()
    assert (held.st_uid, held.st_gid, mode(disk)) == (USER, USER + 1, 0o600)

"""Unpacking a malicious archive: the kept files, and that nothing outside of the target changes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import stat
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from slicemgr.drivers.importer import unpack
from slicemgr.errors import Refused

LARGEST = 64 << 20
EPOCH = "trusted.slicemgr.epoch"  # the program's own note on a root


def archive(outside: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes = b"", **fields: object) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(data))

        add("sbin/tool", b"#!/bin/sh\n", mode=0o4755, uid=7, gid=9)
        add("sbin/same", type=tarfile.LNKTYPE, linkname="sbin/tool")
        add("dev/zero", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        add("xattr", b"x", pax_headers={"SCHILY.xattr.user.note": "kept", f"SCHILY.xattr.{EPOCH}": "7"})
        add("etc", type=tarfile.SYMTYPE, linkname=str(outside))
        add("etc/evil", b"through a link")
        add(f"{outside}/evil", b"absolute")
        add("../../../../../../../../.." + f"{outside}/evil", b"dots")
    return buffer.getvalue()


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    return outside, target


def unpacked(target: Path, stream: bytes, largest: int = LARGEST) -> subprocess.CompletedProcess[bytes]:
    with unpack.prepared(target, largest) as (line, fd):
        return subprocess.run(line, input=stream, capture_output=True, timeout=60, pass_fds=(fd,))


def test_what_is_right_is_kept_and_tricks_stay_inside(places: tuple[Path, Path]) -> None:
    outside, target = places
    unpacked(target, archive(outside))
    assert list(outside.iterdir()) == []
    tool = (target / "sbin/tool").stat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_uid, tool.st_gid, tool.st_nlink) == (0o4755, 7, 9, 2)
    device = (target / "dev/zero").stat()
    assert stat.S_ISCHR(device.st_mode)
    assert device.st_rdev == os.makedev(1, 5)
    assert os.getxattr(target / "xattr", "user.note") == b"kept"
    assert EPOCH not in os.listxattr(target / "xattr")


def test_the_same_archive_unpacked_carelessly_gets_out(places: tuple[Path, Path]) -> None:
    outside, target = places
    careless = ["tar", "--extract", "--file=-", "--absolute-names", "--keep-directory-symlink", f"--directory={target}"]
    careless += ["--xattrs", "--xattrs-include=*"]
    subprocess.run(careless, input=archive(outside), capture_output=True, timeout=60)
    assert (outside / "evil").exists()
    assert os.getxattr(target / "xattr", EPOCH) == b"7"


def test_a_file_of_holes_has_a_largest_size(places: tuple[Path, Path]) -> None:
    """Its stream has a few blocks, but every copy of it would write its full size."""
    outside, target = places
    with (outside / "holes").open("wb") as file:
        file.truncate(4 * LARGEST)
    words = ["tar", "--create", "--sparse", f"--directory={outside}", "--file=-", "holes"]
    stream = subprocess.run(words, check=True, capture_output=True).stdout
    assert len(stream) < 1 << 20
    assert unpacked(target, stream).returncode == 128 + signal.SIGXFSZ
    assert unpacked(target, stream, 5 * LARGEST).stdout == b"unpacked\n", "the control is refused for another reason"


def test_a_path_without_an_end_is_no_tree(places: tuple[Path, Path]) -> None:
    _, target = places
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("d/" * 3000 + "file"))
    done = unpacked(target, buffer.getvalue())
    subprocess.run(["rm", "-rf", target], check=True)  # Python would go down by recursion
    assert done.returncode != 0
    assert b"unpacked" not in done.stdout


@pytest.mark.parametrize(
    ("free", "limit", "problem"), [(True, 1 << 30, ""), (False, 1 << 30, "full"), (True, 1, "free for it")]
)
def test_files_without_content_fill_no_pool(free: bool, limit: int, problem: str, tmp_path: Path) -> None:
    """The bytes of the stream do not show the space of names and inodes: the file system is queried regularly."""
    space = os.statvfs(tmp_path)
    reserve = 0 if free else space.f_blocks * space.f_frsize + 1
    meter = unpack.Meter(
        lambda phase, percent: None,
        tmp_path,
        expected=1 << 30,
        limit=limit,
        reserve=reserve,
        cancelled=threading.Event(),
    )
    with pytest.raises(Refused, match=f"do not fit into the pool.*{problem}") if problem else contextlib.nullcontext():
        meter.add(64 << 20)

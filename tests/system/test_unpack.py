"""An archive full of tricks is unpacked: what is kept, and that nothing outside the target changes."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from slicemgr.drivers import disk_image


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
        add("xattr", b"x", pax_headers={"SCHILY.xattr.user.note": "kept"})
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


def test_what_is_right_is_kept_and_tricks_stay_inside(places: tuple[Path, Path]) -> None:
    outside, target = places
    subprocess.run(disk_image.unpack_argv(target), input=archive(outside), capture_output=True, timeout=60)
    assert list(outside.iterdir()) == []
    tool = (target / "sbin/tool").stat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_uid, tool.st_gid, tool.st_nlink) == (0o4755, 7, 9, 2)
    device = (target / "dev/zero").stat()
    assert stat.S_ISCHR(device.st_mode)
    assert device.st_rdev == os.makedev(1, 5)
    assert os.getxattr(target / "xattr", "user.note") == b"kept"


def test_the_same_archive_unpacked_carelessly_gets_out(places: tuple[Path, Path]) -> None:
    outside, target = places
    careless = ["tar", "--extract", "--file=-", "--absolute-names", "--keep-directory-symlink", f"--directory={target}"]
    subprocess.run(careless, input=archive(outside), capture_output=True, timeout=60)
    assert (outside / "evil").exists()

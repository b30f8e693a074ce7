"""The agent takes files over from a process that it does not trust."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicemgr.agent.images import take_over
from slicemgr.errors import Failed


def test_a_file_becomes_a_copy_of_its_own(tmp_path: Path) -> None:
    upload, disk = tmp_path / "upload", tmp_path / "disk.qcow2"
    upload.write_bytes(b"disk")
    with upload.open("r+b") as still_open:
        take_over(upload, disk)
        still_open.write(b"evil")
    assert disk.read_bytes() == b"disk"
    assert disk.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "another name", "pipe", "directory", "nothing"])
def test_nothing_else_is_followed_or_left(kind: str, tmp_path: Path) -> None:
    upload, disk, secret = tmp_path / "upload", tmp_path / "disk.raw", tmp_path / "secret"
    secret.write_bytes(b"secret")
    match kind:
        case "link":
            upload.symlink_to(secret)
        case "another name":
            os.link(secret, upload)
        case "pipe":
            os.mkfifo(upload)
        case "directory":
            upload.mkdir()
    with pytest.raises(Failed):
        take_over(upload, disk)
    assert not disk.exists()
    assert list(tmp_path.glob("*.new")) == []

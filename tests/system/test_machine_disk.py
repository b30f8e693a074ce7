"""Resizing the disk of a virtual machine, which QEMU owns: an attacker with control of QEMU writes header and name."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.importer.confinement import User
from slicemgr.drivers.storage import machine_disk
from slicemgr.errors import Failed

MIB = 1 << 20
WHO = User(2_000_000 + os.getpid(), 2_000_000 + os.getpid())


def qemu_img(*words: str | Path) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def test_a_disk_grows_as_its_owner_and_nothing_else_is_opened(tmp_path: Path) -> None:
    """An attacker with control of QEMU writes a header with an external data file and a backing file for root."""
    owner = 0x70000000
    image, disk, victim = tmp_path / "image.raw", tmp_path / "disk.qcow2", tmp_path / "victim"
    image.write_bytes(bytes(MIB))
    machine_disk.make_overlay(disk, image, "raw", 2 * MIB)
    os.chown(disk, owner, owner)
    machine_disk.grow(disk, 3 * MIB, WHO)
    assert machine_disk.virtual_size(disk) == 3 * MIB
    assert (disk.stat().st_uid, disk.stat().st_gid) == (owner, owner)
    shown = subprocess.run(["qemu-img", "info", "-U", str(disk)], check=True, capture_output=True, text=True).stdout
    assert f"backing file: {image}" in shown

    disk.unlink()
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={victim},data_file_raw=on", disk, "1M")
    os.chown(disk, owner, owner)
    with pytest.raises(CommandFailed):
        machine_disk.grow(disk, 3 * MIB, WHO)
    assert victim.stat().st_size == MIB
    qemu_img("resize", "-f", "qcow2", disk, "3M")
    assert victim.stat().st_size == 3 * MIB, "the control, as root, changes no other file"


@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_what_is_not_a_disk_of_its_own_is_not_resized(kind: str, tmp_path: Path) -> None:
    victim, disk = tmp_path / "victim.qcow2", tmp_path / "disk.qcow2"
    qemu_img("create", "-f", "qcow2", victim, "1M")
    match kind:
        case "link":
            disk.symlink_to(victim)
        case "second name":
            disk.hardlink_to(victim)
        case "pipe":
            os.mkfifo(disk)
    with pytest.raises(Failed, match="cannot be resized"):
        machine_disk.grow(disk, 3 * MIB, WHO)
    assert machine_disk.virtual_size(disk) is None
    assert struct.unpack_from(">Q", victim.read_bytes(), 24)[0] == MIB
    if kind != "pipe":
        qemu_img("resize", "-f", "qcow2", disk, "3M")
        assert struct.unpack_from(">Q", victim.read_bytes(), 24)[0] == 3 * MIB, "the control follows nothing"

"""Refusals before any program reads a disk image: real files, made by qemu-img and by the test."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import pytest

from slicemgr.config import Config
from slicemgr.drivers.importer import confinement, disk_image
from slicemgr.drivers.libvirt.host import Acceleration
from slicemgr.errors import Refused

MIB = 1 << 20
LARGEST = 64 * MIB
WHO = confinement.user(Config().importer.user)


def qemu_img(*words: str | Path) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def check(path: Path, declared: str) -> disk_image.DiskFacts:
    return disk_image.detect_and_check(path, declared, max_virtual_size=LARGEST, who=WHO)


def raw_disk(path: Path, size: int = 4 * MIB) -> Path:
    """A disk with an MBR and one partition that extends to its end."""
    sectors = size // 512
    table = bytearray(512)
    table[446 + 4] = 0x83
    table[446 + 8 : 446 + 16] = struct.pack("<II", 2048, sectors - 2048)
    table[510:512] = b"\x55\xaa"
    path.write_bytes(bytes(table))
    with path.open("r+b") as file:
        file.truncate(size)
    return path


def test_good_ones_pass(tmp_path: Path) -> None:
    raw = raw_disk(tmp_path / "disk.raw")
    assert check(raw, "raw") == disk_image.DiskFacts("raw", 4 * MIB, 4 * MIB)
    qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, tmp_path / "disk.qcow2")
    facts = check(tmp_path / "disk.qcow2", "qcow2")
    assert (facts.format, facts.virtual_size) == ("qcow2", 4 * MIB)


def test_backing_file(tmp_path: Path) -> None:
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", tmp_path / "evil.qcow2", "1M")
    with pytest.raises(Refused, match="backing file") as refused:
        check(tmp_path / "evil.qcow2", "qcow2")
    assert refused.value.field == "file"


def test_external_data_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={data},data_file_raw=on", tmp_path / "evil.qcow2", "1M")
    with pytest.raises(Refused, match="data file"):
        check(tmp_path / "evil.qcow2", "qcow2")


def test_raw_that_is_really_qcow2(tmp_path: Path) -> None:
    qemu_img("create", "-f", "qcow2", tmp_path / "evil", "1M")
    with pytest.raises(Refused, match="is qcow2, not raw"):
        check(tmp_path / "evil", "raw")


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("hello, this is a letter\n" * 1000)
    with pytest.raises(Refused, match="not a disk image"):
        check(path, "qcow2")
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(Refused, match="too short"):
        check(tmp_path / "short", "raw")


def test_truncated(tmp_path: Path) -> None:
    raw = raw_disk(tmp_path / "disk.raw")
    qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, tmp_path / "disk.qcow2")
    with raw.open("r+b") as file:
        file.truncate(2 * MIB)
    with pytest.raises(Refused, match="truncated"):
        check(raw, "raw")
    whole = tmp_path / "disk.qcow2"
    with whole.open("r+b") as file:
        file.truncate(whole.stat().st_size // 2)
    with pytest.raises(Refused, match="damaged or truncated"):
        check(whole, "qcow2")


def test_compressed_data_may_end_within_a_cluster(tmp_path: Path) -> None:
    cluster = 65536
    raw = raw_disk(tmp_path / "disk.raw")
    with raw.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(b"".join(random.Random(1).randbytes(cluster // 2) + bytes(cluster // 2) for _ in range(8)))
    packed = tmp_path / "disk.qcow2"
    qemu_img("convert", "-f", "raw", "-O", "qcow2", "-c", raw, packed)
    size = packed.stat().st_size
    assert size % cluster, "qemu-img fills the last cluster: this tests nothing"
    assert check(packed, "qcow2").file_size == size
    with packed.open("r+b") as file:
        file.truncate(size - cluster)
    with pytest.raises(Refused, match="damaged or truncated"):
        check(packed, "qcow2")


def test_too_large(tmp_path: Path) -> None:
    qemu_img("create", "-f", "qcow2", tmp_path / "large.qcow2", "1T")
    with pytest.raises(Refused, match="at most"):
        check(tmp_path / "large.qcow2", "qcow2")


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="qcow2 or raw") as refused:
        check(raw_disk(tmp_path / "disk"), "vmdk")
    assert refused.value.field == "format"


@pytest.mark.parametrize(("machine", "name"), [(62, "x86_64"), (3, "i686"), (183, "aarch64"), (999, "")])
def test_architecture_of_elf(machine: int, name: str) -> None:
    assert disk_image.elf_arch(b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", machine)) == name


def test_name_of_the_system() -> None:
    assert disk_image.pretty_name('ID=debian\nPRETTY_NAME="Debian GNU/Linux 12"\n') == "Debian GNU/Linux 12"
    assert disk_image.pretty_name("") == ""


@pytest.mark.parametrize(
    "trick", ["\x1b[2J", "\x07", "\x9b2J", "\r", "\u202e", "\u2066", "\u200b", "\U000e0041", "\x85"]
)
def test_the_name_of_the_system_steers_neither_a_terminal_nor_a_page(trick: str) -> None:
    name = disk_image.pretty_name(f'ID=x\nPRETTY_NAME="Good{trick}Linux"\n')
    assert name.isprintable()
    assert name == "Good" + "".join(one for one in trick if one.isprintable()) + "Linux"


@pytest.mark.parametrize(
    ("acceleration", "emulated"), [(None, True), (Acceleration.EMULATION, True), (Acceleration.KVM, False)]
)
def test_the_appliance_runs_by_what_boots_a_guest_here(acceleration: Acceleration | None, emulated: bool) -> None:
    """libguestfs' own choice is /dev/kvm wherever there is one, whether its kernel boots under it or not."""
    settings = disk_image.settings(acceleration)
    assert settings["LIBGUESTFS_BACKEND"] == "direct"
    assert (settings.get("LIBGUESTFS_BACKEND_SETTINGS") == "force_tcg") is emulated
    assert ("mitigations=off" in settings.get("LIBGUESTFS_APPEND", "")) is emulated, "under KVM its guards stay"

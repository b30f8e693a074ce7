"""Where the parts of a disk lie, for every recipe and at the edges."""

from __future__ import annotations

import json
import subprocess
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from slicemgr.builder import grub, recipe
from slicemgr.drivers.importer.disk_layout import DiskIds, Layout, fstab, lay_out, table_script
from slicemgr.errors import Refused
from slicemgr.model import GIB, MIB

IDS = DiskIds(uuid.UUID(int=1), uuid.UUID(int=2), 0x1234ABCD)


def disk(table: str = "gpt", filesystem: str = "ext4", boot: int = 0, uefi: bool = False, size: int = GIB) -> Layout:
    return lay_out(size, table=table, filesystem=filesystem, boot=boot, uefi=uefi)


EVERY = {
    "gpt": disk(),
    "gpt, uefi": disk(uefi=True),
    "gpt, uefi, /boot": disk(uefi=True, boot=128 * MIB),
    "gpt, btrfs": disk(filesystem="btrfs"),
    "dos": disk("dos"),
    "dos, /boot, btrfs": disk("dos", "btrfs", 128 * MIB),
}


@pytest.mark.parametrize("layout", EVERY.values(), ids=EVERY)
def test_sfdisk_makes_the_table_that_was_laid_out(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(layout.size)
    words = ["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", str(path)]
    subprocess.run(words, check=True, input=table_script(layout), text=True)
    told = subprocess.run(["sfdisk", "--json", str(path)], check=True, capture_output=True, text=True).stdout
    table = json.loads(told)["partitiontable"]
    assert table["label"] == layout.table
    made = {
        int(one["node"].removeprefix(str(path)).lstrip("p")): (one["start"] * 512, one["size"] * 512)
        for one in table["partitions"]
    }
    assert made == {part.number: (part.start, part.size) for part in layout.partitions}


@pytest.mark.parametrize("layout", EVERY.values(), ids=EVERY)
def test_parts_do_not_overlap_and_the_root_can_grow(layout: Layout) -> None:
    parts = [part for part in (layout.core, layout.esp, layout.boot, layout.root) if part]
    assert all(one.start + one.size <= next_one.start for one, next_one in pairwise(parts))
    tail = MIB if layout.table == "gpt" else 0
    assert parts[-1] is layout.root and layout.root.start + layout.root.size == layout.size - tail
    assert all(part.start % MIB == 0 for part in layout.partitions)


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_has_a_layout(name: str) -> None:
    assert recipe.load(recipe.directory(name)).layout.root.size > GIB


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(Refused, match="at least 129M") as refused:
        disk("dos", boot=64 * MIB, size=128 * MIB)
    assert refused.value.field == "recipe.size"
    assert disk("dos", boot=64 * MIB, size=129 * MIB).root.size == 64 * MIB
    with pytest.raises(Refused, match="at least 64M") as refused:
        disk(boot=MIB)
    assert refused.value.field == "recipe.boot"


def test_fstab_and_grub_name_the_file_systems() -> None:
    plain, split = EVERY["gpt, uefi"], EVERY["dos, /boot, btrfs"]
    assert fstab(plain, IDS).splitlines() == [
        f"UUID={IDS.root} / ext4 defaults,errors=remount-ro 0 1",
        "UUID=1234-ABCD /boot/efi vfat umask=0077,nofail 0 1",
    ]
    assert fstab(split, IDS).splitlines() == [
        f"UUID={IDS.root} / btrfs defaults 0 0",
        f"UUID={IDS.boot} /boot ext4 defaults 0 2",
    ]
    for layout, has_boot, where in ((plain, IDS.root, "/boot/grub"), (split, IDS.boot, "/grub")):
        assert f"search.fs_uuid {has_boot} root\nset prefix=($root){where}\n" in grub.early_config(layout, IDS)
        config = grub.grub_config(layout, IDS, "quiet")
        assert f"--set=root {has_boot}\n" in config and f"linux /vmlinuz root=UUID={IDS.root} ro quiet\n" in config


def test_the_core_image_reads_the_table_and_the_file_system_with_boot() -> None:
    modules = {name: set(grub.core_modules(layout)) for name, layout in EVERY.items()}
    assert {"part_gpt", "ext2"} <= modules["gpt"]
    assert {"part_msdos", "ext2"} <= modules["dos, /boot, btrfs"] and "btrfs" not in modules["dos, /boot, btrfs"]
    assert {"part_gpt", "btrfs"} <= modules["gpt, btrfs"]


@pytest.mark.parametrize(("name", "sector"), [("gpt", 2048), ("dos", 1)])
def test_boot_sector_and_core_image_are_told_where_they_lie(name: str, sector: int) -> None:
    core = EVERY[name].core
    boot = bytes(range(256)) + bytes(254) + b"\x55\xaa"
    code = grub.boot_sector(boot, core)
    assert len(code) == 440 and code[0x5C:0x64] == sector.to_bytes(8, "little") and code[0x66:0x68] == b"\x90\x90"
    assert code[:0x5C] == boot[:0x5C] and code[0x68:] == boot[0x68:440]
    image = grub.core_image(bytes(1024), core)
    assert image[0x1F4:0x1FC] == (sector + 1).to_bytes(8, "little")
    with pytest.raises(Refused, match="unexpected content"):
        grub.boot_sector(bytes(512), core)
    with pytest.raises(Refused, match="does not fit"):
        grub.core_image(bytes(core.size + 1), core)

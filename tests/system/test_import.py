"""Real imports of untrusted disk images: their results, refusals, and the cleanup after failures."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from testbed import POOL, Node, eventually

from slicemgr.drivers.importer import disk_image

MIB = 1 << 20
SECTOR = 512
FIRST = 2048  # sector of the first partition
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service, effective


def make_tree(root: Path) -> Path:
    """A tree with one program that libguestfs recognizes as an installed system."""
    for name in ("bin", "etc", "root", "proc", "sys", "dev", "tmp", "run", "usr", "var/log"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    (root / "etc/fstab").write_text("/dev/sda1 / ext4 defaults 0 1\n")
    (root / "etc/hostname").write_text("strange\n")
    (root / "etc/os-release").write_text('ID=debian\nPRETTY_NAME="Strange 1"\n')
    return root


def make_disk(path: Path, *trees: Path, size: int = 64 * MIB) -> Path:
    """A raw disk with a partition of `size` bytes for each tree."""
    table = bytearray(SECTOR)
    sectors = size // SECTOR
    with path.open("wb") as file:
        file.truncate(FIRST * SECTOR + len(trees) * size)
    for number, tree in enumerate(trees):
        first = FIRST + number * sectors
        entry = 446 + 16 * number
        table[entry + 4] = 0x83
        table[entry + 8 : entry + 16] = struct.pack("<II", first, sectors)
        where = ["-E", f"offset={first * SECTOR}", str(path), f"{size // 1024}k"]
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), *where], check=True, capture_output=True)
    table[510:512] = b"\x55\xaa"
    with path.open("r+b") as file:
        file.write(table)
    return path


def make_btrfs_disk(path: Path, tree: Path, subvolume: str, size: int = 128 * MIB) -> Path:
    """A raw disk with one partition: a btrfs with the tree in a subvolume. Mounted in a private mount namespace."""
    system = path.with_suffix(".btrfs")
    with system.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.btrfs", "-q", str(system)], check=True, capture_output=True)
    script = 'mount -o loop "$1" "$2" && btrfs -q subvolume create "$2/$4" && cp -a "$3/." "$2/$4" && umount "$2"'
    place = path.with_suffix(".mnt")
    place.mkdir()
    named = [str(system), str(place), str(tree), subvolume]
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *named]
    subprocess.run(argv, check=True, capture_output=True)
    table = bytearray(FIRST * SECTOR)
    table[446 + 4] = 0x83
    table[446 + 8 : 446 + 16] = struct.pack("<II", FIRST, size // SECTOR)
    table[510:512] = b"\x55\xaa"
    with path.open("wb") as disk, system.open("rb") as file:
        disk.write(table)
        shutil.copyfileobj(file, disk)
    return path


@pytest.fixture(scope="module")
def node(spare_node: Node) -> Node:
    return spare_node


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


def pool_of(node: Node) -> Path:
    return node.box.path(str(POOL))


def held(node: Node) -> dict[str, set[str]]:
    """Everything that an import writes to."""
    state = node.box.path("/var/lib/slicemgr")
    return {
        "bases": names(state / "pool/bases"),
        "disks": names(state / "images"),
        "uploads": names(state / "uploads"),
        "groups": {one for one in names(node.box.path("/sys/fs/cgroup/memory/slicemgr")) if "import" in one},
        "rows": {one["name"] for one in json.loads(node.ok("image", "list", "-f", "json"))},
    }


def ready(node: Node, name: str) -> dict[str, str] | None:
    found = [one for one in json.loads(node.ok("image", "list", "-f", "json")) if one["name"] == name]
    return found[0] if found and found[0]["state"] == "ready" else None


def refused(node: Node, disk: Path, *says: str) -> None:
    before = held(node)
    done = node.slicectl("image", "import", disk, "--name", "strange")
    assert done.returncode == 1, done.stderr
    for text in ("file: ", *says):
        assert text in done.stderr
    assert held(node) == before


@pytest.fixture
def kept(node: Node) -> Iterator[Node]:
    """The node; an image called strange is deleted afterwards."""
    yield node
    node.delete_all()
    node.slicectl("image", "delete", "strange")


def escaped(node: Node) -> set[str]:
    """The files of a sliver's identity in the /etc of the node, to which the links of this image lead."""
    return {name for name in names(node.box.path("/etc")) if name.startswith(("authorized_keys", "ssh_host_"))}


@dataclass(frozen=True, slots=True)
class Odd:
    """An image whose system is in a subvolume of a btrfs, with files that are hard to keep as they are.

    facts: of `slicectl image show`. escaped_before: see `escaped`, before the import.
    """

    node: Node
    facts: dict[str, Any]
    escaped_before: set[str]


@pytest.fixture(scope="module")
def odd(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    """Imported once, because the appliance takes longer than all that the tests do with it."""
    folder = tmp_path_factory.mktemp("odd")
    tree = make_tree(folder / "tree")
    tool = tree / "bin/tool"
    tool.write_bytes(b"#!/bin/sh\n")
    os.chown(tool, 7, 9)
    tool.chmod(0o4755)
    (tree / "bin/same").hardlink_to(tool)
    plain = tree / "root/plain"
    plain.write_bytes(b"x")
    os.setxattr(plain, "user.note", b"kept")
    os.setxattr(plain, "security.capability", CAPABILITY)
    subprocess.run(["setfacl", "-m", "u:1234:rw", plain], check=True)
    os.mknod(tree / "dev/zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    (tree / "root/.ssh").symlink_to("/etc")
    (tree / "etc/ssh").symlink_to("../../../../../../etc")
    (tree / "tmp/outside").symlink_to("/")
    (tree / "etc/fstab").write_text("/dev/sda1 / btrfs subvol=@root 0 1\n")
    (tree / "boot").mkdir()
    for name in ("vmlinuz-6.1.0", "vmlinuz-9 init=x"):
        (tree / "boot" / name).write_text("kernel")
    (tree / "etc/os-release").write_text('PRETTY_NAME="Strange\x1b[2J\u202e 1"\n')
    before = escaped(node)
    node.ok("image", "import", make_btrfs_disk(folder / "disk.raw", tree, "@root"), "--name", "odd")
    yield Odd(node, json.loads(node.ok("image", "show", "odd", "-f", "json")), before)
    node.delete_all()
    node.ok("image", "delete", "odd")


def test_a_system_in_a_subvolume_is_imported(odd: Odd) -> None:
    assert (odd.facts["arch"], odd.facts["os"]) == ("x86_64", "Strange[2J 1")
    note = json.loads((odd.node.box.path("/var/lib/slicemgr/images") / f"{odd.facts['sha256']}.json").read_text())
    assert note["boot"]["kernel"] == "/boot/vmlinuz-6.1.0"
    where, subvolume = note["boot"]["root"].split()
    assert where == "root=/dev/vda1", "a kernel without an initrd finds no file system by its UUID"
    assert subvolume == "rootflags=subvol=@root"


def test_what_a_file_is_survives(odd: Odd) -> None:
    base = pool_of(odd.node) / "bases" / odd.facts["sha256"]
    unpacked = (base / "bin/tool").stat()
    assert (stat.S_IMODE(unpacked.st_mode), unpacked.st_uid, unpacked.st_gid, unpacked.st_nlink) == (0o4755, 7, 9, 2)
    assert os.getxattr(base / "root/plain", "user.note") == b"kept"
    assert os.getxattr(base / "root/plain", "security.capability") == CAPABILITY
    assert (
        "user:1234:rw-" in subprocess.run(["getfacl", "-n", base / "root/plain"], capture_output=True, text=True).stdout
    )
    assert (base / "dev/zero").stat().st_rdev == os.makedev(1, 5)
    with pytest.raises(OSError, match="Read-only"):
        (base / "new").touch()


def test_links_lead_nowhere(odd: Odd) -> None:
    node, base = odd.node, pool_of(odd.node) / "bases" / odd.facts["sha256"]
    assert odd.escaped_before == escaped(node) == set()
    key = f"{node.key}.pub"
    node.ok("create", "exp", "--type", "lxc", "--image", "odd", "--ssh-key", key, "--no-wait")
    sliver = node.show("exp")["slivers"][0]["id"]
    root = pool_of(node) / "slivers" / sliver / "root"
    written = node.key.with_suffix(".pub").read_text().split()[1]

    def identified() -> bool:
        """The keys come last."""
        keys = [path for path in (root / "etc/authorized_keys", root / "root/.ssh/authorized_keys") if path.exists()]
        return any(written in one.read_text() for one in keys) and "exp-0" in (root / "etc/hostname").read_text()

    eventually(identified, "it is named and has its keys", 120)
    assert escaped(node) == set()
    assert not (base / "etc/authorized_keys").exists()


def test_doctor_starts_the_importer_where_it_is_confined(node: Node) -> None:
    checks = {one["name"]: one for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
    assert (checks["importer"]["ok"], checks["importer"]["detail"]) == (True, "confined as uid 58480")
    assert checks["supermin"]["ok"] and checks["bwrap"]["ok"]
    with node.other_settings(lambda text: f'{text}\n[importer]\nuser = "nobody-known"\n'):
        checks = {one["name"]: one for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
        assert checks["importer"]["ok"] is False
        assert "importer.user" in checks["importer"]["detail"]


@pytest.mark.long
def test_a_disk_without_a_system_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/data").write_text("only data")
    refused(node, make_disk(tmp_path / "disk.raw", tmp_path / "tree", size=8 * MIB), "no root filesystem")


@pytest.mark.long
def test_a_disk_with_two_systems_is_refused(node: Node, tmp_path: Path) -> None:
    trees = [make_tree(tmp_path / name) for name in ("one", "two")]
    refused(node, make_disk(tmp_path / "disk.raw", *trees, size=16 * MIB), "two root filesystems", "/dev/sda1")


@pytest.mark.long
def test_a_subvolume_named_like_a_command_runs_nothing(node: Node, tmp_path: Path) -> None:
    """The control uses guestfish with lines of text, which runs the text after `|` in a shell of this host."""
    proof = f"secproof-{os.getpid()}"
    tree = make_tree(tmp_path / "tree")
    (tree / "etc/fstab").write_text("LABEL=none / btrfs defaults 0 1\n")
    disk = make_btrfs_disk(tmp_path / "disk.raw", tree, f"root |touch {proof}")
    refused(node, disk, "btrfs subvolume", f"'root |touch {proof}'", "command line")
    pid = node.box.daemon("agent")
    assert pid is not None
    assert not (Path(f"/proc/{pid}/cwd") / proof).exists()

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # The kernel of the appliance probes disks in parallel: the image may have either name. `-` ignores an error.
    asks = [f"-inspect-get-mountpoints btrfsvol:/dev/{disk}1/root |touch {proof}" for disk in ("sda", "sdb")]
    lines = ("config -cpu max,erms=off", "run", "inspect-os", *asks)
    settings = [f"{name}={value}" for name, value in disk_image.settings(None).items() if name != "LIBGUESTFS_PATH"]
    asked = [*settings, f"LIBGUESTFS_TMPDIR={scratch}", "guestfish", "--ro", "--format=raw", "-a", str(disk)]
    argv = ["env", "-C", str(scratch), *asked]
    said = node.box.run(argv, input="".join(f"{line}\n" for line in lines), timeout=600)
    assert re.search(r"btrfsvol:/dev/sd[ab]1/root \|touch", said.stdout), said
    assert (scratch / proof).exists(), "the control ran nothing: this tests nothing"


@pytest.mark.long
def test_etc_that_leads_outside_is_no_system(node: Node, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    shutil.rmtree(tree / "etc")
    (tree / "etc").symlink_to("/")
    refused(node, make_disk(tmp_path / "disk.raw", tree, size=16 * MIB), "no root filesystem")


@pytest.mark.parametrize("fault", ["backing", "truncated"])
def test_what_is_no_whole_image_is_refused_at_once(node: Node, tmp_path: Path, fault: str) -> None:
    disk = tmp_path / "disk.qcow2"
    backing = ("-F", "raw", "-b", "/etc/passwd") if fault == "backing" else ()
    subprocess.run(["qemu-img", "create", "-f", "qcow2", *backing, disk, "64M"], check=True, capture_output=True)
    if fault == "truncated":
        os.truncate(disk, 100_000)
    refused(node, disk)


@pytest.mark.long
def test_an_interrupted_import_is_finished_by_the_next_agent(kept: Node, tmp_path: Path) -> None:
    before = held(kept)
    disk = make_disk(tmp_path / "disk.raw", make_tree(tmp_path / "tree"), size=16 * MIB)
    kept.ok("image", "import", disk, "--name", "strange", "--no-wait")
    bases = pool_of(kept) / "bases"
    eventually(lambda: any(name.startswith(".incoming-") for name in names(bases)), "the import is under way")
    kept.kill("agent")
    kept.start_agent()
    shown = eventually(lambda: ready(kept, "strange"), "the image is there", 600)
    assert (bases / shown["sha256"] / "bin/busybox").exists()
    kept.ok("image", "delete", "strange")
    eventually(lambda: held(kept) == before, "nothing is left")


@pytest.mark.long
def test_files_that_outgrow_the_pool_are_refused(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    with (tree / "root/zeros").open("wb") as file:
        file.truncate(300 * MIB)
    disk = make_disk(tmp_path / "disk.raw", tree, size=384 * MIB)
    with Node("narrow", pool_size="1G") as node:
        node.start()
        node.box.run(["fallocate", "-l", "550M", str(POOL / "taken")], check=True)
        refused(node, disk, "do not fit into the pool")

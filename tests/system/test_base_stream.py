"""Streams of bases on a real btrfs: what is kept, and what a hostile node that made one cannot do with it.

Each attempt succeeds with a plain `btrfs receive` as root, the control.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import demo
import pytest
import send_streams as send
from tiny_sliver import in_box

from slicemgr.agent.acceleration import Machines
from slicemgr.agent.images import Importer, read_note
from slicemgr.agent.journal import Journal
from slicemgr.config import Config, ImporterConfig, NodeConfig
from slicemgr.drivers.importer import appliance, base_stream, confinement, disk_image
from slicemgr.drivers.importer.unpack import Meter
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed, Refused
from slicemgr.model import BootFacts, Image, ImageState
from slicemgr.store.updates import utcnow

NAME = "ab" * 32
WHO = confinement.user(ImporterConfig().user)
LARGEST = 64 << 20
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")
EPOCH = "trusted.slicemgr.epoch"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with in_box(f"streams-{demo.CLONE}", "4G"):
        made = Pool(Path("/var/lib/slicemgr/pool"))
        made.ensure_layout()
        made.enable_quota()
        yield made


@pytest.fixture
def target(pool: Pool) -> Iterator[Path]:
    path = pool.path / "bases" / ".incoming-test"
    pool.create_subvolume(path)
    yield path
    pool.delete_tree(path)


def meter(target: Path, limit: int = LARGEST, reserve: int = 0) -> Meter:
    return Meter(
        lambda step, percent: None,
        target,
        expected=limit,
        limit=limit,
        reserve=reserve,
        cancelled=threading.Event(),
        look=base_stream.LOOK,
    )


def empty(pool: Pool, target: Path) -> None:
    """What an agent does after a failure."""
    pool.delete_tree(target)
    pool.create_subvolume(target)


def receive(stream: bytes, target: Path, folder: Path, limit: int = LARGEST) -> None:
    file = folder / "stream.base"
    file.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=stream, check=True, capture_output=True).stdout)
    base_stream.receive(file, target, WHO, meter(target, limit))


def plain(stream: bytes, target: Path) -> str:
    """The control: `btrfs receive` as root, without a confinement. What it complains of."""
    done = subprocess.run(["btrfs", "receive", "--quiet", target], input=stream, capture_output=True, timeout=60)
    return done.stderr.decode(errors="replace")


def test_a_base_arrives_as_it_was(pool: Pool, target: Path, tmp_path: Path) -> None:
    """Owners, modes, links, devices, attributes, capabilities, holes and shared extents."""
    base = pool.path / "bases" / NAME
    pool.create_subvolume(base)
    tool = base / "bin" / "tool"
    tool.parent.mkdir(mode=0o711)
    tool.write_bytes(os.urandom(300_000))
    os.chown(tool, 7, 9)
    tool.chmod(0o4755)
    (base / "same").hardlink_to(tool)
    subprocess.run(["cp", "--reflink=always", tool, base / "copy"], check=True)
    with (base / "holes").open("wb") as file:
        file.truncate(10 << 20)
        file.seek(5 << 20)
        file.write(b"within")
    (base / "link").symlink_to("/etc/passwd")
    os.mknod(base / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(base / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 70000))
    os.mkfifo(base / "fifo")
    os.setxattr(tool, "user.note", b"kept")
    os.setxattr(tool, "security.capability", CAPABILITY)
    subprocess.run(["setfacl", "-m", "u:77:r", base / "copy"], check=True)
    os.chown(base, 3, 4)
    base.chmod(0o750)
    os.utime(tool, ns=(10**18 + 5, 10**18 + 7))
    pool.set_readonly(base, True)
    file_ = tmp_path / f"{NAME}.base"
    digest, size = base_stream.write(base, file_)
    assert (digest, size) == (hashlib.sha256(file_.read_bytes()).hexdigest(), file_.stat().st_size)
    assert file_.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [file_]
    origin = base_stream.receive(file_, target, WHO, meter(target))
    assert tree(target) == tree(base) and len(tree(base)) == 9
    got = target / "bin" / "tool"
    assert (target.stat().st_mode, target.stat().st_uid, target.stat().st_gid) == (stat.S_IFDIR | 0o750, 3, 4)
    assert got.read_bytes() == tool.read_bytes() == (target / "copy").read_bytes()
    assert (target / "holes").read_bytes() == (base / "holes").read_bytes()
    assert (target / "holes").stat().st_blocks < 2048
    assert got.stat().st_mtime_ns == 10**18 + 7 and got.stat().st_nlink == 2
    assert (os.getxattr(got, "user.note"), os.getxattr(got, "security.capability")) == (b"kept", CAPABILITY)
    name = "system.posix_acl_access"
    assert os.getxattr(target / "copy", name) == os.getxattr(base / "copy", name)
    pool.set_received(target, origin.uuid, origin.transaction)
    pool.set_readonly(target, True)
    shown = subprocess.run(["btrfs", "subvolume", "show", target], check=True, capture_output=True, text=True).stdout
    assert f"Received UUID: \t\t{uuid.UUID(bytes=origin.uuid)}" in shown and "Flags: \t\t\treadonly" in shown
    shown = subprocess.run(["btrfs", "subvolume", "show", base], check=True, capture_output=True, text=True).stdout
    assert str(uuid.UUID(bytes=origin.uuid)) in shown
    pool.delete_tree(base)


def test_paths_and_links_stay_inside(pool: Pool, target: Path, tmp_path: Path) -> None:
    outside = pool.path / "outside"
    outside.mkdir(exist_ok=True)
    tricks = {
        "dots": send.file("../../../outside/dots", b"evil"),
        "link": send.symlink("out", str(outside)) + send.file("out/link", b"evil"),
    }
    for name, commands in tricks.items():
        stream = send.stream(send.subvolume(NAME), commands)
        with pytest.raises(Failed, match=r"leads out of it|Not a directory"):
            receive(stream, target, tmp_path)
        assert list(outside.iterdir()) == []
        empty(pool, target)
        plain(stream, target)
        assert (outside / name).exists(), "the control"
        empty(pool, target)
        (outside / name).unlink()
    outside.rmdir()
    for path in ("/a", "a//b", "./a", "a/..", "a/."):
        with pytest.raises(Failed, match="leads out of it"):
            receive(send.stream(send.subvolume(NAME), send.file(path)), target, tmp_path)
        empty(pool, target)
    receive(send.stream(send.subvolume(NAME), send.directory("..."), send.file(".../a")), target, tmp_path)


def test_no_program_can_leave_the_confinement(
    pool: Pool, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second wall: the same tricks with a program that follows links, in the same confinement."""
    outside = pool.path / "outside"
    outside.mkdir(exist_ok=True)
    careless = tmp_path / "careless.py"
    careless.write_text(
        "import os, sys\n"
        "sys.stdin.buffer.read()\n"
        f"places = ('{outside}', '/target/../../..{outside}', '/proc/1/root{outside}')\n"
        "for one in places:\n"
        "    try:\n"
        "        open(one + '/evil', 'w').close()\n"
        "    except OSError:\n"
        "        pass\n"
        "open('/target/there', 'w').close()\n"
        f"try:\n    os.setxattr('/target/there', '{EPOCH}', b'9')\n"
        "except PermissionError:\n    open('/target/denied', 'w').close()\n"
        "os.mknod('/target/full', 0o20666, os.makedev(1, 7))\n"
        "try:\n    open('/target/full', 'w')\n"
        "except PermissionError:\n    open('/target/closed', 'w').close()\n"
    )
    monkeypatch.setattr(base_stream, "_SOURCE", careless)
    receive(send.stream(send.subvolume(NAME)), target, tmp_path)
    assert {one.name for one in target.iterdir()} == {"there", "denied", "full", "closed"}
    assert list(outside.iterdir()) == []
    outside.rmdir()


def test_devices_are_not_written_to(pool: Pool, target: Path, tmp_path: Path) -> None:
    """/dev/full refuses what reaches it."""
    node = send.device("full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
    stream = send.stream(send.subvolume(NAME), node, send.write("full", b"x"))
    with pytest.raises(Failed, match="Permission denied"):
        receive(stream, target, tmp_path)
    empty(pool, target)
    assert "No space left" in plain(stream, target), "the control: the device was opened and written"


@pytest.mark.parametrize("name", [EPOCH, "security.selinux", "security.ima"])
def test_no_attribute_of_the_node_is_set(name: str, pool: Pool, target: Path, tmp_path: Path) -> None:
    stream = send.stream(send.subvolume(NAME), send.file("a"), send.attribute("a", name, b"9"))
    with pytest.raises(Failed, match="attribute that no image may have"):
        receive(stream, target, tmp_path)
    empty(pool, target)
    if name == EPOCH:
        plain(stream, target)
        assert os.getxattr(target / NAME / "a", EPOCH) == b"9", "the control"


def test_a_stream_is_that_of_one_whole_subvolume(pool: Pool, target: Path, tmp_path: Path) -> None:
    other = send.command(16, (15, b"a"), (18, bytes(8)), (20, b"x" * 16), (22, b"b"), (23, bytes(8)), (24, bytes(8)))
    first, file = send.subvolume(NAME), send.file("a")
    for commands in ((first, first), (first, file, other), (send.command(2, (1, bytes(16))), file), (file,)):
        with pytest.raises(Failed):
            receive(send.stream(*commands), target, tmp_path)
        empty(pool, target)
    with pytest.raises(Failed, match="not that of one subvolume"):
        receive(send.stream(first) + send.stream(first), target, tmp_path)
    empty(pool, target)
    receive(send.stream(first, file), target, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no stream", send.stream(send.subvolume(NAME), version=2)])
def test_other_files_and_versions_are_no_streams(content: bytes, target: Path, tmp_path: Path) -> None:
    """A stream of version 2 can have compressed extents, which would write more than they have bytes."""
    with pytest.raises(Failed, match="not a btrfs send stream of version 1"):
        receive(content, target, tmp_path)
    receive(send.stream(send.subvolume(NAME), send.file("a", b"x")), target, tmp_path)


def test_a_damaged_file_is_refused(pool: Pool, target: Path, tmp_path: Path) -> None:
    whole = send.stream(send.subvolume(NAME), send.file("a", os.urandom(40_000)), send.file("b", b"x"))
    with pytest.raises(Failed, match="ends early"):
        receive(whole[:30_000], target, tmp_path)
    empty(pool, target)
    file = tmp_path / "stream.base"
    file.write_bytes(b"\x28\xb5\x2f\xfd" + os.urandom(1000))
    with pytest.raises(Failed):
        base_stream.receive(file, target, WHO, meter(target))
    compressed = subprocess.run(["zstd", "-q", "-c"], input=whole, check=True, capture_output=True).stdout
    file.write_bytes(compressed[:-100])
    with pytest.raises(Failed):
        base_stream.receive(file, target, WHO, meter(target))
    empty(pool, target)
    file.write_bytes(compressed)
    base_stream.receive(file, target, WHO, meter(target))


def test_huge_streams(pool: Pool, target: Path, tmp_path: Path) -> None:
    """A stream that is larger than allowed, a file of holes, and a reserve of the pool that it would use."""
    data = send.stream(send.subvolume(NAME), *(send.file(f"f{one}", bytes(48_000)) for one in range(24)))
    with pytest.raises(Refused, match="do not fit"):
        receive(data, target, tmp_path, 1 << 20)
    empty(pool, target)
    holes = send.stream(send.subvolume(NAME), send.file("holes"), send.size("holes", 4 * LARGEST))
    with pytest.raises(Refused, match="do not fit"):
        receive(holes, target, tmp_path)
    empty(pool, target)
    receive(holes, target, tmp_path, 5 * LARGEST)
    empty(pool, target)
    file = tmp_path / "stream.base"
    file.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=data, check=True, capture_output=True).stdout)
    with pytest.raises(Refused, match="pool is full"):
        base_stream.receive(file, target, WHO, meter(target, reserve=1 << 60))
    empty(pool, target)
    receive(data, target, tmp_path)


def test_only_a_base_with_the_findings_of_the_import_is_kept(pool: Pool, tmp_path: Path) -> None:
    """Nothing remains of another one, and the next attempt is not disturbed by it."""
    config = Config(node=NodeConfig(pool=pool.path, state_dir=tmp_path / "state", run_dir=tmp_path / "run"))
    config.images_dir.mkdir(parents=True)
    importer = Importer(config, pool, cast(Journal, None), cast(Machines, None), threading.Event())
    program = bytearray(64)
    program[:6], program[18] = b"\x7fELF\x02\x01", 62
    files = send.directory("bin") + send.file("bin/sh", bytes(program))
    file = tmp_path / "stream.base"
    stream = send.stream(send.subvolume(NAME), files)
    file.write_bytes(subprocess.run(["zstd", "-q", "-c"], input=stream, check=True, capture_output=True).stdout)
    image = Image(NAME, "lab", "qcow2", 1, 1, "x86_64", "Debian 12", ImageState.READY, utcnow(), base_size=1000)

    def receive(image: Image) -> None:
        importer.receive(image, file, lambda step, percent: None)

    def left() -> list[Path]:
        return [*sorted((pool.path / "bases").iterdir()), *config.images_dir.iterdir()]

    before = left()
    kernel = BootFacts(bios=False, uefi=False, kernel="/boot/vmlinuz")
    for wrong in (replace(image, arch="aarch64"), replace(image, boot=kernel)):
        with pytest.raises(Failed, match="another system"):
            receive(wrong)
        assert left() == before
    receive(image)
    base = pool.path / "bases" / NAME
    assert (base / "bin" / "sh").read_bytes() == bytes(program)
    known = read_note(config, NAME)
    assert known is not None and (known.arch, known.bytes) == ("x86_64", 1000)
    with pytest.raises(OSError, match="Read-only"):
        (base / "new").touch()
    importer.delete_files(NAME)
    assert left() == before


@pytest.mark.long
def test_a_received_base_is_the_extracted_one_and_takes_less_time(pool: Pool, target: Path, tmp_path: Path) -> None:
    """Of a whole system, which libguestfs extracts in an emulated machine here. The second time is that of a stream."""
    disk = demo.ensure_image()
    shutil.copy(disk, tmp_path / "disk")
    tmp_path.chmod(0o755)
    (tmp_path / "disk").chmod(0o644)
    cache, base = Path("/var/tmp") / f"appliance-{demo.CLONE}", pool.path / "bases" / NAME
    appliance.ensure(cache, WHO)
    pool.create_subvolume(base)
    try:
        began = time.monotonic()
        found = disk_image.extract(
            tmp_path / "disk",
            "qcow2",
            base,
            acceleration=None,
            who=WHO,
            cache=cache,
            progress=lambda step, percent: None,
            size_limit=4 << 30,
            reserve=0,
            cancelled=threading.Event(),
        )
        extraction = time.monotonic() - began
        pool.set_readonly(base, True)
        file = tmp_path / "stream.base"
        began = time.monotonic()
        _, size = base_stream.write(base, file)
        writing = time.monotonic() - began
        began = time.monotonic()
        base_stream.receive(file, target, WHO, meter(target, 4 << 30))
        reception = time.monotonic() - began
        print(f"extraction {extraction:.1f} s, stream {writing:.1f} s, reception {reception:.1f} s")
        print(f"{found.bytes >> 20} MiB of files, disk image {disk.stat().st_size >> 20} MiB, stream {size >> 20} MiB")
        assert tree(base) == tree(target) and len(tree(base)) > 5000
        assert disk_image.facts_of(target, found.bytes, found.boot) == found
        assert reception < extraction
    finally:
        pool.delete_tree(base)
        shutil.rmtree(cache)


def tree(top: Path) -> list[tuple[str, int, int, int, int, int, str]]:
    """Path, mode, owners, size, device and target of each file."""
    found = []
    for folder, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = Path(folder, name)
            held = path.lstat()
            link = str(path.readlink()) if path.is_symlink() else ""
            size = held.st_size if stat.S_ISREG(held.st_mode) else 0
            row = (held.st_mode, held.st_uid, held.st_gid, size, held.st_rdev, link)
            found.append((str(path.relative_to(top)), *row))
    return sorted(found)

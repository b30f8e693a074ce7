"""VM disk images: check the format that was declared, and extract the files inside.

The node's kernel never mounts an uploaded image: libguestfs reads it in its appliance. qemu-img, libguestfs and its
QEMU are confined (see confinement). Only a few lines of JSON and the tar stream leave the confinement. The stream is
unpacked in another confinement that can write only to the target (see unpack), whatever the archive contains. Device
nodes are unpacked unchanged: roots are mounted nodev, and a sliver's cgroup allows only its own devices.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oslo_utils.imageutils import format_inspector

from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.importer import appliance, boot_loader, confinement, image_findings, unpack
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.importer.image_findings import NO_ROOT, DiskFindings, RootDevice
from slicemgr.drivers.importer.unpack import Meter, Progress
from slicemgr.drivers.libvirt.host import EMULATED_CPU, Acceleration
from slicemgr.errors import invalid
from slicemgr.model import NO_BOOT, BootFacts

FORMATS = ("qcow2", "raw")
SYSTEM_PYTHON = "/usr/bin/python3"  # the interpreter of Debian's libguestfs binding

_CHUNK = 1 << 20
_CHECK_SECONDS = 600.0
_APPLIANCE_SECONDS = 1800.0
_DISK, _PROGRAM = "/image/disk", "/image/importer.py"  # their paths inside the confinement
_KVM = "/dev/kvm"
CHECK_BOUNDS = Bounds(memory=2 << 30, data=1 << 30, cpu=600, file=0)
IMPORT_BOUNDS = Bounds(memory=3 << 30, data=4 << 30, cpu=3600, file=1 << 30, scratch=512 << 20)
_SECTOR = 512
_MACHINES = {3: "i686", 62: "x86_64", 183: "aarch64", 40: "armv7l", 243: "riscv64"}  # e_machine of ELF
_PROGRAMS = ("bin/sh", "usr/bin/sh", "bin/busybox", "sbin/init", "usr/bin/env", "usr/lib/systemd/systemd")
_LARGEST_PROGRAM, _LARGEST_RELEASE, _LARGEST_KERNEL_CONFIG = 1 << 24, 1 << 16, 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The format and sizes of a disk image. Sizes are in bytes."""

    format: str
    virtual_size: int
    file_size: int


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The findings in an unpacked tree. arch, os_name: "" without a tree. bytes: of the stream, with its headers."""

    arch: str
    os_name: str
    bytes: int
    boot: BootFacts = NO_BOOT


def detect_and_check(path: Path, declared: str, *, max_virtual_size: int, who: User) -> DiskFacts:
    """Check an uploaded file before any other program reads it. Raises Refused with the reason.

    who: the importer's user, who must be able to read the file. declared: qcow2 or raw. The content must match it: a
    file of another format could name files of the node (CVE-2026-24708). The image must have no backing file and no
    external data file, be complete, and be at most `max_virtual_size` bytes large.
    """
    if declared not in FORMATS:
        raise invalid("format", f"{declared[:40]!r} is unknown", " or ".join(FORMATS))
    size = path.stat().st_size
    try:
        inspector = format_inspector.detect_file_format(str(path))
    except format_inspector.ImageFormatError as error:
        raise invalid("file", f"is several formats at once: {error}", "send a plain qcow2 or raw disk image") from error
    if inspector is None:
        raise invalid("file", "is not a disk image", "send a qcow2 or raw disk image")
    found = str(inspector)
    if (declared == "qcow2") != (found == "qcow2") or (declared == "raw" and found not in ("raw", "gpt")):
        what = "not a disk image" if found == "raw" else found
        raise invalid("file", f"is {what}, not {declared}", "send it with the format that it has")
    try:
        inspector.safety_check()
    except format_inspector.SafetyCheckFailed as error:
        reasons = ", ".join(sorted(map(_reason, error.failures)))
        raise invalid("file", reasons, "convert it to a plain image with `qemu-img convert -O qcow2`") from error
    virtual = int(inspector.virtual_size) if declared == "qcow2" else size
    if not 0 < virtual <= max_virtual_size:
        raise invalid("file", f"is a disk of {virtual} bytes", f"at most {max_virtual_size}: web.max_image")
    if declared == "qcow2":
        _check_qcow2(path, size, who)
    else:
        _check_raw(path, size)
    return DiskFacts(declared, virtual, size)


def _reason(failure: str) -> str:
    return {
        "backing_file": "it has a backing file",
        "data_file": "it has an external data file",
        "unknown_features": "it uses unknown features",
    }.get(failure, f"the check {failure!r} fails")


def _check_qcow2(path: Path, size: int, who: User) -> None:
    """Refuse a damaged file, or one shorter than its tables; a last, compressed cluster has no padding."""
    damaged = invalid("file", "is damaged or truncated", "send the complete file again")
    try:
        line = ["qemu-img", "check", "--output=json", "-f", "qcow2", _DISK]
        output = confinement.run(line, who, CHECK_BOUNDS, View({_DISK: path}, {}), timeout=_CHECK_SECONDS)
    except CommandFailed as error:
        raise damaged from error
    with path.open("rb") as file:
        cluster = 1 << struct.unpack_from(">I", file.read(24), 20)[0]
    try:
        end = json.loads(output).get("image-end-offset", 0)
    except (ValueError, AttributeError, RecursionError) as error:
        raise damaged from error
    if type(end) is not int or end >= size + cluster:
        raise damaged


def _check_raw(path: Path, size: int) -> None:
    """Refuse a file that is too short for a disk, or shorter than its partition table requires: it is truncated."""
    with path.open("rb") as file:
        head = file.read(2 * _SECTOR)
    if len(head) < 2 * _SECTOR:
        raise invalid("file", "is not a disk image: it is too short", "send a qcow2 or raw disk image")
    needed = 0
    if head[_SECTOR : _SECTOR + 8] == b"EFI PART":
        needed = (int(struct.unpack_from("<Q", head, _SECTOR + 32)[0]) + 1) * _SECTOR
    elif head[510:512] == b"\x55\xaa":
        entries = (struct.unpack_from("<II", head, 446 + 16 * number + 8) for number in range(4))
        needed = max(first + count for first, count in entries) * _SECTOR
    if needed > size:
        raise invalid("file", f"is truncated: {size} bytes of {needed}", "send the complete file again")


def sha256_of(path: Path, progress: Callable[[int], None]) -> str:
    """The SHA-256 of a file in hexadecimal. `progress` is called with the percentage done."""
    digest, done, size = hashlib.sha256(), 0, max(1, path.stat().st_size)
    reported = -1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if (percent := done * 100 // size) != reported:
                reported = percent
                progress(percent)
    return digest.hexdigest()


def settings(acceleration: Acceleration | None) -> dict[str, str]:
    """The environment in which libguestfs runs its appliance as machines run here; emulated while that is unknown.

    By default libguestfs uses any /dev/kvm, although its kernel may not boot under it. In emulation the kernel's
    mitigations of speculative execution are off: emulated code is not speculated upon.
    """
    direct = {
        "LIBGUESTFS_BACKEND": "direct",
        "LIBGUESTFS_PATH": appliance.PLACE,
        "LIBGUESTFS_TMPDIR": confinement.SCRATCH,
        "LIBGUESTFS_CACHEDIR": confinement.SCRATCH,
    }
    if acceleration is Acceleration.KVM:
        return direct
    return {**direct, "LIBGUESTFS_BACKEND_SETTINGS": "force_tcg", "LIBGUESTFS_APPEND": "mitigations=off"}


def extract(
    disk: Path,
    format: str,
    target: Path,
    *,
    acceleration: Acceleration | None,
    who: User,
    cache: Path,
    progress: Progress,
    size_limit: int,
    reserve: int,
    cancelled: threading.Event,
) -> TreeFacts:
    """Unpack the disk's one root file system, with the file systems of its fstab, into the empty `target`.

    Owners, modes, ACLs, hard links, device nodes, file capabilities and user xattrs are kept. A disk that can boot but
    does not have exactly one root file system is not unpacked. Raises Refused if any other disk does not have one, or
    if more than `size_limit` bytes are streamed, and Failed if the import broke or was cancelled. The caller removes
    `target`.

    acceleration: of machines on this node. who: the importer's user, who must be able to read the disk. cache:
    directory of libguestfs' appliance. reserve: bytes of the pool that must stay free.
    """
    request = {"disk": _DISK, "format": format, "cpu": "" if acceleration is Acceleration.KVM else EMULATED_CPU}
    progress("inspect", None)
    made = appliance.ensure(cache, who)
    try:
        with (
            unpack.pipe() as (stream, importers),
            confinement.converse(
                [SYSTEM_PYTHON, "-I", "-B", _PROGRAM, str(importers.fileno())],
                with_kvm(who) if acceleration is Acceleration.KVM else who,
                IMPORT_BOUNDS,
                importer_view(disk, made, acceleration),
                timeout=_APPLIANCE_SECONDS,
                env=settings(acceleration),
                keep=(importers.fileno(),),
            ) as importer,
        ):
            os.fchown(importers.fileno(), who.uid, who.gid)  # libguestfs opens it by its path in /dev/fd
            importers.close()
            importer.say(json.dumps(request))
            found = image_findings.disk(importer.line())
            loader = boot_loader.facts(found.sector, found.partition_types)
            root = _only_root(found, bootable=loader.bios or loader.uefi)
            if root is None:
                return TreeFacts("", "", 0, loader)
            expected = image_findings.used_bytes(importer.line())
            meter = Meter(progress, target, expected=expected, limit=size_limit, reserve=reserve, cancelled=cancelled)
            streamed = unpack.unpack(stream, target, meter, lambda: image_findings.complete(importer.line()))
    except CommandFailed as error:
        raise image_findings.broken(error.stderr) from error
    facts = facts_of(target, streamed, loader)
    where = boot_loader.root_argument(root, initrd=bool(facts.boot.initrd))
    return replace(facts, boot=replace(facts.boot, root=where))


def importer_view(disk: Path, made: Path, acceleration: Acceleration | None) -> View:
    """The importer's view. made: the appliance's directory. Pure."""
    reads = {_DISK: disk, _PROGRAM: Path(__file__).with_name("image_importer.py"), appliance.PLACE: made}
    return View(reads, {}, (_KVM,) if acceleration is Acceleration.KVM else ())


def with_kvm(who: User) -> User:
    """The same user, with the group of /dev/kvm in addition."""
    return replace(who, groups=(Path(_KVM).stat().st_gid,))


def facts_of(tree: Path, streamed: int, loader: BootFacts) -> TreeFacts:
    """The findings in an unpacked tree. streamed: bytes of its stream. loader: how else the disk boots."""
    with Root(tree) as inside:
        release = (inside.read("etc/os-release", _LARGEST_RELEASE) or b"").decode(errors="replace")
        boot = inside.names("boot")
        kernel, initrd = boot_loader.kernel(boot, inside.names("."))
        config = inside.read(kernel.replace("/vmlinuz-", "/config-")[1:], _LARGEST_KERNEL_CONFIG) if kernel else None
    mmio = boot_loader.mmio(config or b"")
    kernel = boot_loader.uncompressed(kernel, boot, config or b"") if mmio else kernel
    thin = boot_loader.programs(config or b"") if mmio else ()
    loader = replace(loader, kernel=kernel, initrd=initrd, mmio=mmio, programs=thin)
    return TreeFacts(arch_of(tree), pretty_name(release), streamed, loader)


def pretty_name(os_release: str) -> str:
    """PRETTY_NAME of an os-release file, without unprintable characters; "" if the file has none."""
    for line in os_release.split("\n"):
        if line.startswith("PRETTY_NAME="):
            name = line.partition("=")[2].strip("\"'")
            return "".join(character for character in name if character.isprintable())[:100]
    return ""


def arch_of(tree: Path) -> str:
    """The architecture of the programs in a tree. Raises Refused if no program shows it."""
    with Root(tree) as inside:
        for program in _PROGRAMS:
            arch = elf_arch(inside.read(program, _LARGEST_PROGRAM) or b"")
            if arch:
                return arch
    raise invalid("file", f"{NO_ROOT}: no program in it names its architecture")


def elf_arch(head: bytes) -> str:
    """The machine of an ELF file, named as by `uname -m`; "" if it is not ELF or the machine is unknown."""
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return ""
    order = "<" if head[5] == 1 else ">"
    return _MACHINES.get(struct.unpack_from(f"{order}H", head, 18)[0], "")


def _only_root(found: DiskFindings, *, bootable: bool) -> RootDevice | None:
    """The one root; None if there is not exactly one, but a boot loader. Raises Refused otherwise."""
    if found.root is not None or bootable:
        return found.root
    if not found.count:
        raise invalid("file", NO_ROOT, "use an image with one installed Linux system")
    what = "two" if found.count == 2 else found.count
    raise invalid(
        "file", f"has {what} root filesystems: {', '.join(found.names)}", "use an image with one root filesystem"
    )

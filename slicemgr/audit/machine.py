"""The checks inside a virtual machine, and the reasons why the other checks of a container do not apply. Pure.

A tenant may do everything inside its own machine. The checks verify that the machine has the promised size and only
hardware that QEMU emulates; `shared` has the checks of the network between slivers.
"""

from __future__ import annotations

from collections.abc import Mapping

from slicemgr.audit.checks import INSIDE, LIMITS, MIB, PAPER, Check, Target, Values, Verdict, amount, one, processors
from slicemgr.audit.row import OWN_KERNEL

# net, block, console, rng, balloon, gpu: see "Device Types" in the virtio specification. Other devices share more of
# the node: 9 and 26 files, 19 sockets.
VIRTIO = frozenset({0x1, 0x2, 0x3, 0x4, 0x5, 0x10})
_QUMRANET, _RED_HAT, _INTEL = 0x1AF4, 0x1B36, 0x8086
# Devices of the board q35 of QEMU: host bridge, ISA bridge, SATA, SMBus, USB.
_Q35 = frozenset({0x29C0, 0x2918, 0x2922, 0x2930, 0x2934, 0x2935, 0x2936, 0x293A})
_USB = frozenset({0x1D6B, 0x0627})  # the root hubs of Linux, and devices of QEMU
_BOARD = "QEMU"
_SERIALS = ("product_serial", "board_serial", "chassis_serial")
_NO_SERIAL = ("nothing", "", "Not Specified", "None")


def _ids(values: Values, bus: str) -> list[tuple[int, int]]:
    """Vendor and device IDs on a bus. A line that cannot be parsed counts as unknown hardware."""
    found = []
    for line in values.get(f"hardware.{bus}", ()):
        vendor, _, device = line.partition(":")
        try:
            found.append((int(vendor, 16), int(device, 16)))
        except ValueError:
            found.append((-1, -1))
    return found


def _disks(values: Values, target: Target) -> Verdict:
    """The total size of the writable disks must not exceed the limit."""
    sizes = {name.removeprefix("disk.size."): amount(values, name) for name in values if name.startswith("disk.size.")}
    written = {disk: size for disk, size in sizes.items() if one(values, f"disk.read_only.{disk}") != "1"}
    seen = ", ".join(
        f"{disk} {'?' if size is None else size // MIB} MiB{'' if disk in written else ' read-only'}"
        for disk, size in sorted(sizes.items())
    )
    held = bool(written) and all(size is not None for size in sizes.values())
    return seen or "no disk", held and sum(size or 0 for size in written.values()) <= target.disk


def _hardware(values: Values, _: Target) -> Verdict:
    virtio, pci = _ids(values, "virtio"), _ids(values, "pci")
    foreign = [f"virtio device {device}" for vendor, device in virtio if vendor != _QUMRANET or device not in VIRTIO]
    foreign += [
        f"PCI device {vendor:04x}:{device:04x}"
        for vendor, device in pci
        if vendor not in (_QUMRANET, _RED_HAT) and not (vendor == _INTEL and device in _Q35)
    ]
    foreign += [f"USB device {vendor:04x}:{device:04x}" for vendor, device in _ids(values, "usb") if vendor not in _USB]
    return ", ".join(foreign) or f"{len(virtio)} virtio and {len(pci)} PCI devices", bool(virtio) and not foreign


def _firmware(values: Values, _: Target) -> Verdict:
    vendor = one(values, "hardware.sys_vendor")
    serials = [one(values, f"hardware.{name}").strip() for name in _SERIALS]
    shown = [serial for serial in serials if serial not in _NO_SERIAL]
    seen = f"made by {vendor}, {f'serial number {shown[0]}' if shown else 'no serial number'}"
    return seen, vendor == _BOARD and not shown


def _memory(values: Values, target: Target) -> Verdict:
    """Beyond the memory of the machine, its own kernel kills the process, and the machine continues to run."""
    ended = one(values, "memory")
    seen = f"{ended}: a process that fills {(target.memory + _BEYOND) // MIB} MiB"
    return seen, ended in ("killed", "refused")


_BEYOND = 64 * MIB
_OWN_MEMORY = "this memory is the machine's own: see the row memory"
_OWN_FILES = "a machine has file systems of its own: see the row disks"

_SAME = (
    "table 3: hostname",
    "table 3: machine",
    "table 3: network",
    "table 3: mount points",
    "table 3: memory",
)
OWN = (
    Check("table 3: tools", "its own processors", lambda _: ("view",), processors),
    Check("disks", "at most the disk limit; the others read-only", lambda _: ("hardware",), _disks),
    Check("hardware", "only what QEMU emulates", lambda _: ("hardware",), _hardware),
    Check("firmware", "QEMU's, no serial number", lambda _: ("hardware",), _firmware),
    Check("memory", "ends at the limit", lambda target: ("memory", target.memory + _BEYOND), _memory, timeout=300.0),
)
CHECKS = (*(check for check in PAPER if check.row in _SAME), *OWN)


def _reason(check: Check) -> str:
    if check.row in ("table 3: quota", "requests to the pool"):
        return _OWN_FILES
    if check in LIMITS and check.row != "processes":
        return _OWN_MEMORY
    return "a machine has hardware of its own: see the row hardware" if check.row == "devices" else OWN_KERNEL


# By row, in the order of the table: checks of a kernel that slivers share.
INAPPLICABLE: Mapping[str, str] = {
    check.row: _reason(check) for check in INSIDE if check.row not in {one.row for one in CHECKS}
}

"""Read an untrusted disk image by libguestfs. A separate program that is never imported.

It runs under the system's Python, which has libguestfs' binding (python3-guestfs), and so imports nothing of slicemgr.
The binding takes arguments: a name from an image is never part of text that a shell or parser interprets.

argv: the number of the file descriptor for the tar stream. Standard input: one line of JSON with `disk`, `format` and
`cpu` (QEMU's -cpu, "" for the default). Standard output: three lines of JSON, which image_findings.py checks: the
findings on the disk; the bytes that its files use, before the stream begins; and that the stream is complete. In place
of any of them, `{"error": TEXT}` reports a failure. The program ends when its standard input closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading

import guestfs

_DISK = "/dev/sda"
_SECTOR = 512
_MOST_ROOTS, _MOST_PARTITIONS = 8, 128  # further ones are not described
_LONGEST = 300  # characters of an error


def main() -> int:
    """Import one image; the exit status, 1 after a failure of libguestfs."""
    stream = int(sys.argv[1])
    os.set_inheritable(stream, False)  # the stream must end when this program closes it, even while QEMU runs
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    guest = guestfs.GuestFS(python_return_dict=True)
    try:
        _import(guest, request, stream)
    except RuntimeError as error:  # the only exception of the binding
        _say({"error": str(error)[:_LONGEST]})
        return 1
    guest.close()
    return 0


def _import(guest: guestfs.GuestFS, request: dict[str, str], stream: int) -> None:
    guest.add_drive_opts(request["disk"], format=request["format"], readonly=True)
    if request["cpu"]:
        guest.config("-cpu", request["cpu"])
    guest.launch()
    roots = guest.inspect_os()
    _say(
        {
            "sector": guest.pread_device(_DISK, _SECTOR, 0).hex(),
            "partition_types": _partition_types(guest),
            "roots": [_root(guest, root) for root in roots[:_MOST_ROOTS]],
            "root_count": len(roots),
        }
    )
    if len(roots) != 1:
        return
    _mount(guest, roots[0])
    used = guest.statvfs("/")
    _say({"bytes": (used["blocks"] - used["bfree"]) * used["frsize"]})
    guest.tar_out("/", f"/dev/fd/{stream}", numericowner=True, xattrs=True, acls=True)
    os.close(stream)
    _say({"complete": True})


def _partition_types(guest: guestfs.GuestFS) -> list[str]:
    """The partition types of the disk: GPT type GUIDs, or MBR ids as hexadecimal numbers with 0x."""
    found = []
    names = {_DISK, *guest.list_devices()}  # the appliance's kernel may call the only disk /dev/sdb
    for device in guest.list_partitions()[:_MOST_PARTITIONS]:
        with contextlib.suppress(RuntimeError):
            if guest.part_to_dev(device) not in names:
                continue
            number = guest.part_to_partnum(device)
            try:
                found.append(guest.part_get_gpt_type(_DISK, number))
            except RuntimeError:
                found.append(hex(guest.part_get_mbr_id(_DISK, number)))
    return found


def _root(guest: guestfs.GuestFS, root: str) -> dict[str, str]:
    """The description of a root. uuid, subvolume: "" if it has none."""
    device, uuid, subvolume = guest.mountable_device(root), "", ""
    with contextlib.suppress(RuntimeError):
        uuid = guest.vfs_uuid(device)
    with contextlib.suppress(RuntimeError):
        subvolume = guest.mountable_subvolume(root)
    return {"name": root, "device": device, "subvolume": subvolume, "uuid": uuid}


def _mount(guest: guestfs.GuestFS, root: str) -> None:
    """Mount the root, which must succeed, and the file systems of its fstab, which may fail; outer ones first."""
    places = guest.inspect_get_mountpoints(root)
    for where in sorted(places, key=lambda where: (len(where), where)):
        try:
            guest.mount_ro(places[where], where)
        except RuntimeError:
            if where == "/":
                raise


def _say(finding: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(finding) + "\n")
    sys.stdout.flush()


def _end_with_the_caller() -> None:
    """Kill this process group, which includes QEMU, when the caller closes standard input: calls do not notice it."""
    while os.read(sys.stdin.fileno(), 1):  # a read of the file object would hold its lock and break the exit
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

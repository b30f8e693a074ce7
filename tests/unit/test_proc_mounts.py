"""The words that start lxcfs, and the kernel's list of its mounts."""

from __future__ import annotations

from pathlib import Path

from slicemgr.drivers.guest.proc_view import device, start_words

MOUNTINFO = """\
22 1 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:57 /proc/uptime /proc/uptime rw,nosuid - fuse.lxcfs lxcfs rw
31 22 0:58 /meminfo /proc/meminfo rw - fuse libvirt rw
32 22 0:61 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw
"""


def test_the_mount_on_top_counts(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTINFO)
    assert device(file, "/proc/uptime") == "0:57"
    assert device(file, "/proc/meminfo") == "0:61"
    assert device(file, "/proc/stat") is None
    assert device(tmp_path / "gone", "/proc/stat") is None


def test_both_ways_to_start_it_drop_the_same_rights() -> None:
    plain = start_words(Path("/run/x/lxcfs"), Path("/run/x/lxcfs.pid"), systemd=False)
    unit = start_words(Path("/run/x/lxcfs"), Path("/run/x/lxcfs.pid"), systemd=True)
    assert plain[plain.index("--") :] == unit[unit.index("--") :]
    bounding = plain[plain.index("--bounding-set") + 1]
    named = next(one for one in unit if "CapabilityBoundingSet" in one).partition("Set=")[2]
    assert {f"CAP_{one[1:].upper()}" for one in bounding.split(",")[1:]} == set(named.split())
    assert bounding.startswith("-all,") and "--no-new-privs" in plain and "--property=NoNewPrivileges=yes" in unit

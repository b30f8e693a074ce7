"""Each limit against a tenant who tries to exceed it as root inside the sliver."""

from __future__ import annotations

import os

import pytest
from testbed import Node

MIB = 1 << 20

# A subvolume made by ioctl, as btrfs-progs would: not in the image, but any tenant can bring it.
FILL_NESTED = """
import fcntl, os, struct
root = os.open("/root", os.O_RDONLY)
try:
    fcntl.ioctl(root, 0x5000940E, bytearray(struct.pack("q4088s", 0, b"nested")))
    print("made")
except PermissionError:
    os.mkdir("/root/nested")
    print("refused")
total = 0
with open("/root/nested/fill", "wb", buffering=0) as file:
    block = os.urandom(1 << 20)
    try:
        while total < 512:
            file.write(block)
            os.fsync(file.fileno())
            total += 1
    except OSError as error:
        print(error.strerror)
print(total)
"""

SPAWN = """
import subprocess
count = 0
try:
    while count < 500:
        subprocess.Popen(['sleep', '150'])
        count += 1
except OSError:
    pass
print(count)
"""
BURN = """
import time
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 3:
    pass
print((time.process_time() - used) / (time.monotonic() - start))
"""

WRITE, SHOW = "head -c 20M /dev/urandom > /root/fill; sync", "/.slicemgr/disk-limit"
CHANGES = (
    "chmod 666 disk/exclusive",
    "echo 0 > disk/exclusive",
    "mount -o remount,bind,rw disk",
    "umount disk",
    "rm disk-limit",
)


BIG = "python3 -c 'x = bytearray(200 << 20)'"


@pytest.fixture
def limited(node: Node) -> Node:
    """The node with a small slice."""
    node.create("small", "--memory", "128M", "--disk", "64M", "--pids", "64")
    return node


@pytest.mark.usefixtures("each_type")
def test_memory_bomb_is_killed_and_the_sliver_lives(node: Node) -> None:
    node.create("small", "--memory", "128M")
    bomb = node.ssh("small", "python3 -c 'x = bytearray(400 << 20); print(len(x))'")
    assert bomb.returncode != 0
    assert node.inside("small", "echo alive") == "alive\n"


def test_fork_bomb_stops_at_the_limit(limited: Node) -> None:
    count = int(limited.inside("small", f'python3 -c "{SPAWN}"; pkill sleep', timeout=180))
    assert 10 < count < 64


def test_disk_limit_holds_for_a_nested_subvolume(limited: Node) -> None:
    told = limited.inside(
        "small", f"cat > /tmp/fill.py <<'E'\n{FILL_NESTED}\nE\npython3 /tmp/fill.py", timeout=120
    ).split("\n")
    assert told[0] == ("made" if limited.simple_quotas else "refused")
    assert "quota" in told[1].lower(), told
    # Full quotas count at commits: writes between two of them may slightly exceed the limit.
    assert int(told[2]) <= (64 if limited.simple_quotas else 80)


def test_the_disk_limit_and_its_use_are_shown_inside(limited: Node) -> None:
    """By a command that each login names, from counts that the tenant cannot change; df shows the pool."""
    pool = os.statvfs(limited.box.path("/var/lib/slicemgr/pool"))
    read = "cat /.slicemgr/disk/max_exclusive; df --output=size -B1 / | tail -1"
    assert [int(one) for one in limited.inside("small", read).split()] == [64 * MIB, pool.f_blocks * pool.f_frsize]
    before, *shown = limited.inside("small", f"cat /.slicemgr/disk/exclusive; {WRITE}; {SHOW}").splitlines()
    assert shown[0].split() == ["limit", "64", "MiB"]
    assert int(before) < 20 * MIB <= int(shown[1].split()[1]) * MIB
    limited.ok("resize", "small", "--disk", "100M")
    assert limited.inside("small", SHOW).splitlines()[0].split() == ["limit", "100", "MiB"]
    for one in CHANGES:
        assert limited.ssh("small", f"cd /.slicemgr && ls disk/exclusive && {one}").returncode != 0, one
    assert limited.inside("small", "test -r /.slicemgr/disk/exclusive; ls /sys/fs/btrfs") == ""
    to = limited.show("small")["slivers"][0]["ssh"]
    keys = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", limited.key)
    words = ("ssh", "-tt", *keys, "-p", str(to["port"]), f"root@{to['host']}")
    login = limited.box.run(words, input="exit\n", check=True)
    assert SHOW in login.stdout


def test_memory_changes_while_it_is_used(limited: Node) -> None:
    """A process keeps its memory while the limit is raised; a limit below what it holds is refused by the kernel."""
    hold = "nohup python3 -c 'import time; x = bytearray(80 << 20); time.sleep(300)' >/dev/null 2>&1 &"
    assert limited.ssh("small", BIG).returncode != 0, "200 MiB are too much for 128"
    limited.inside("small", hold)
    limited.ok("resize", "small", "--memory", "512M", "--memory-guarantee", "64M", "--memory-weight", "200")
    limits = limited.show("small")["slivers"][0]["limits"]
    assert [limits[name] for name in ("memory", "memory_guarantee", "memory_weight")] == [512 * MIB, 64 * MIB, 200]
    assert limited.inside("small", f"{BIG} && pgrep -c python3") == "1\n", "the process before still holds its memory"
    failed = limited.slicectl("resize", "small", "--memory", "64M")
    assert failed.returncode != 0 and "memory" in failed.stderr, failed.stderr
    limited.ok("resize", "small", "--memory", "128M")
    assert limited.inside("small", "pgrep -c python3") == "1\n"
    assert limited.show("small")["state"] == "running"


def test_cpu_quota_holds(node: Node) -> None:
    node.create("small", "--cpu", "0.25")
    share = float(node.inside("small", f'python3 -c "{BURN}"', timeout=180))
    assert share < 0.4

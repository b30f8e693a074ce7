"""Each limit against a tenant who tries to exceed it as root inside the sliver."""

from __future__ import annotations

import pytest
from testbed import Node

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


def test_cpu_quota_holds(node: Node) -> None:
    node.create("small", "--cpu", "0.25")
    share = float(node.inside("small", f'python3 -c "{BURN}"', timeout=180))
    assert share < 0.4

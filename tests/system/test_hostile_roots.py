"""Manipulations of a sliver's root by its tenant against writes of the agent, and their effects on others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Node, eventually

CONTROL = Path(__file__).with_name("patient_agent.py")
HOSTILE = 8  # as many as the agent has workers
HELD = 15.0  # seconds for which the control must be blocked; the kernel breaks a lease after 45 s
# Holds a write lease of /etc/passwd, and takes it again each time the kernel has broken it.
HOLD = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open("/etc/passwd", os.O_RDONLY)
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        open("/run/held", "w").close()
    except OSError:
        pass
    time.sleep(0.1)
"""
# BTRFS_IOC_SUBVOL_SETFLAGS: the owner of a subvolume may, without any privilege.
SET_READONLY = """
import fcntl, os, struct
fcntl.ioctl(os.open("/", os.O_RDONLY), 0x4008941A, struct.pack("Q", 2))
try:
    os.mkdir("/root/more")
    print("writable")
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture(scope="module")
def node(second_node: Node) -> Node:
    return second_node


@pytest.fixture
def second(node: Node, tmp_path: Path) -> Iterator[Path]:
    """A key that no slice has yet; it is removed from the account at the end."""
    path = tmp_path / "second"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "second", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    yield path
    ids = [one["id"] for one in json.loads(node.ok("key", "list", "-f", "json"))]
    if ids:
        node.ok("key", "remove", *ids)
    node.delete_all()


def opens(node: Node, key: Path, target: str = "exp") -> bool:
    return node.slicectl("ssh", "-i", key, target, "--", "true").returncode == 0


def missing(node: Node, name: str) -> list[str]:
    return [str(one["keys_missing"] or "") for one in node.show(name)["slivers"]]


def hold_passwd(node: Node) -> None:
    """Eight slivers, in each of which a program holds /etc/passwd."""
    node.create("hold", "--count", str(HOSTILE), "--memory", "64M")
    for index in range(HOSTILE):
        start = f"setsid python3 -c '{HOLD}' > /dev/null 2>&1 < /dev/null & until [ -e /run/held ]; do sleep 0.1; done"
        node.inside(f"hold/{index}", start)


def holders(node: Node) -> list[str]:
    """The holding processes of the box's slivers, as the host numbers them."""
    found = node.box.run(["sh", "-c", "grep -l F_SETLEASE /proc/[0-9]*/cmdline"]).stdout.split()
    pids = [path.split("/")[2] for path in found]
    return [pid for pid in pids if node.box.run(["grep", "-q", "^python3", f"/proc/{pid}/cmdline"]).returncode == 0]


def test_files_held_in_eight_slivers_hold_up_nobody_else(node: Node, second: Path) -> None:
    node.create("exp")
    hold_passwd(node)
    before = holders(node)
    assert len(before) == HOSTILE
    node.ok("key", "add", f"{second}.pub")
    node.create("other")
    eventually(lambda: opens(node, second), "the neighbour has its new key")
    eventually(lambda: all("lease" in one for one in missing(node, "hold")), "the slivers say why they lack it")
    assert all("/etc/passwd" in one for one in missing(node, "hold"))
    assert missing(node, "exp") == [""] and holders(node) == before, "the files were held all the time"


def test_blocking_opens_would_hold_up_a_create(node: Node, second: Path) -> None:
    """The control: the agent that opens files as it did before."""
    hold_passwd(node)
    node.kill("agent")
    node.start_agent((sys.executable, str(CONTROL)))
    try:
        node.ok("key", "add", f"{second}.pub")
        eventually(lambda: state(node, "hold") == "running", "the keys are on their way")
        node.ok("create", "other", *node.wishes(), "--no-wait")
        with pytest.raises(AssertionError, match="not within"):
            eventually(lambda: state(node, "other") == "done", "the create ends", HELD)
    finally:
        for pid in holders(node):
            node.box.run(["kill", "-9", pid])
        eventually(lambda: state(node, "other") == "done", "without the holders it goes on")
        node.kill("agent")
        node.start_agent()


def state(node: Node, name: str) -> str:
    """Of the slice's newest operation."""
    return str(json.loads(node.ok("op", "list", "--slice", name, "-f", "json"))[0]["state"])


def test_a_root_that_its_tenant_set_readonly_gets_keys_and_restarts(node: Node, second: Path) -> None:
    node.create("exp")
    assert "Read-only file system" in node.inside("exp", f"python3 -c '{SET_READONLY}'")
    node.ok("key", "add", f"{second}.pub")
    eventually(lambda: opens(node, second), "the new key opens")
    assert missing(node, "exp") == [""]
    assert "Read-only file system" in node.inside("exp", f"python3 -c '{SET_READONLY}'")
    node.ok("restart", "exp")
    assert node.inside("exp", "touch /root/written && echo writable").strip() == "writable"

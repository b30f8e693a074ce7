"""The state after a reboot of the node. The first test is the last one before the reboot, the others follow it.

The slices must outlive these tests, so none of them uses the fixture that deletes all slices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from host_node import HostNode
from test_units import MIB, init_of, limits
from testbed import Node, eventually

BEFORE = Path("/opt/tests/before.json")
KEY = Path("/root/reboot_ed25519")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host() -> Node:
    node = HostNode()
    node.key = KEY
    node.start()
    return node


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    remembered: dict[str, Any] = json.loads(BEFORE.read_text())
    assert remembered["boot"] != BOOT_ID.read_text(), "there was no reboot"
    return remembered


@pytest.fixture(scope="module")
def rebooted(before: dict[str, Any]) -> Node:
    """The node, once the slices are as they were."""
    node = host()
    for name in ("awake", "asleep"):
        eventually(lambda name=name: node.show(name)["state"] == before[name]["state"], f"{name} is as it was", 600)  # type: ignore[misc]
    return node


def test_slices_are_left_for_the_reboot() -> None:
    node = host()
    node.box.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY], check=True)
    node.create("awake", "--memory", "128M", "--pids", "99", "--cpu", "0.5")
    node.inside("awake", "echo precious > /root/data; sync")
    node.create("asleep")
    node.ok("stop", "asleep")
    slices = {name: node.show(name) for name in ("awake", "asleep")}
    assert (slices["awake"]["state"], slices["asleep"]["state"]) == ("running", "stopped")
    BEFORE.write_text(json.dumps({"boot": BOOT_ID.read_text(), **slices}))


def test_a_running_sliver_comes_back_as_it_was(rebooted: Node, before: dict[str, Any]) -> None:
    was, now = before["awake"]["slivers"][0], rebooted.show("awake")["slivers"][0]
    rebooted.ok("wait", "awake", "--timeout", "600s")
    assert rebooted.inside("awake", "cat /root/data") == "precious\n"
    assert (now["ssh"], now["ports"], now["address"]) == (was["ssh"], was["ports"], was["address"])
    wanted = {"memory.max": str(128 * MIB), "pids.max": "99", "cpu.max": "50000 100000"}
    assert limits(init_of(rebooted, "awake")) == wanted


def test_host_and_database_agree_after_the_reboot(rebooted: Node) -> None:
    rebooted.agrees()

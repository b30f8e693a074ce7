"""Whatever dies, whenever: in the end every sliver is as desired, or an operation says why not, and nothing is left."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from testbed import BIN, Node, eventually

FAULTY = Path(__file__).with_name("faulty_agent.py")
CREATE_STEPS = ("root", "identity", "publish", "domain", "verify", "ssh")
DELETE_STEPS = ("kill", "withdraw", "remove")


def ask(node: Node, *words: str) -> str:
    """Ask without waiting; the slice's name."""
    key = f"{node.key}.pub"
    node.ok(
        *words,
        "--no-wait",
        *(("--type", "lxc", "--image", "debian-12", "--ssh-key", key) if words[0] == "create" else ()),
    )
    return words[1]


def start_faulty(node: Node, step: str, moment: str, *victim: int) -> None:
    node.kill("agent")
    node.start_agent((str(BIN / "python"), str(FAULTY), step, moment, *map(str, victim)))


def wait_for_death(node: Node) -> None:
    eventually(lambda: node.box.daemon("agent") is None, "the agent has killed itself", 30)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", CREATE_STEPS)
def test_agent_killed_around_each_step_of_create(node: Node, step: str, moment: str) -> None:
    start_faulty(node, step, moment)
    ask(node, "create", "exp")
    wait_for_death(node)
    node.start_agent()
    node.ok("wait", "exp", "--timeout", "60s")
    assert node.inside("exp", "id -u") == "0\n"
    node.agrees()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", DELETE_STEPS)
def test_agent_killed_around_each_step_of_delete(node: Node, step: str, moment: str) -> None:
    node.create("exp")
    start_faulty(node, step, moment)
    ask(node, "delete", "exp")
    wait_for_death(node)
    node.start_agent()
    node.ok("wait", "exp", "--for", "gone", "--timeout", "60s")
    node.agrees()


def start_fatal_for_libvirtd(node: Node, step: str, moment: str) -> None:
    daemon = node.box.facts().libvirtd
    assert daemon is not None
    start_faulty(node, step, moment, daemon)


def libvirtd_comes_back(node: Node) -> None:
    eventually(lambda: node.box.facts().libvirtd is None, "libvirtd was killed", 30)
    node.box.libvirtd("start")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", CREATE_STEPS)
def test_libvirtd_killed_around_each_step_of_create(node: Node, step: str, moment: str) -> None:
    start_fatal_for_libvirtd(node, step, moment)
    ask(node, "create", "exp")
    libvirtd_comes_back(node)
    eventually(lambda: node.show("exp")["state"] == "running", "it is made with the new libvirtd", 90)
    node.ok("wait", "exp", "--timeout", "60s")
    assert node.inside("exp", "id -u") == "0\n"
    node.agrees()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", DELETE_STEPS)
def test_libvirtd_killed_around_each_step_of_delete(node: Node, step: str, moment: str) -> None:
    node.create("exp")
    start_fatal_for_libvirtd(node, step, moment)
    ask(node, "delete", "exp")
    libvirtd_comes_back(node)
    node.ok("wait", "exp", "--for", "gone", "--timeout", "90s")
    node.agrees()


def test_web_killed_during_a_create(node: Node) -> None:
    ask(node, "create", "exp", "--count", "3")
    node.kill("web")
    node.start_web()
    node.ok("wait", "exp", "--timeout", "60s")
    node.agrees()


@pytest.mark.parametrize("action", ["restart", "kill"])
def test_libvirtd_gone_in_the_middle(node: Node, action: str) -> None:
    node.create("kept")
    ask(node, "create", "exp", "--count", "4")
    node.box.libvirtd(action)
    if action == "kill":
        node.box.libvirtd("start")
    eventually(lambda: node.show("exp")["state"] == "running", "the agent makes what broke again", 90)
    node.ok("wait", "exp", "--timeout", "60s")
    assert node.inside("kept", "id -u") == "0\n"
    node.agrees()


def test_libvirtd_down_says_so_and_create_ends_when_it_is_back(node: Node) -> None:
    node.box.libvirtd("stop")
    try:
        ask(node, "create", "exp")
        eventually(lambda: node.show("exp")["slivers"][0]["error"], "the sliver says what is wrong", 60)
        assert "libvirt does not answer" in node.show("exp")["slivers"][0]["error"]
        checks = {one["name"]: one["ok"] for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
        assert checks["libvirt lxc driver"] is False
    finally:
        node.box.libvirtd("start")
    eventually(lambda: node.show("exp")["state"] == "running", "it is made when libvirtd is back", 60)


def test_hand_made_destroy_is_repaired(node: Node) -> None:
    sliver = node.create("exp")["slivers"][0]
    node.inside("exp", "echo kept > /root/file; sync")
    node.box.run(["virsh", "-c", "lxc:///system", "destroy", f"sm-{sliver['id']}"], check=True)
    eventually(lambda: node.ssh("exp", "cat /root/file").stdout == "kept\n", "it runs again with its files", 60)
    assert "repair" in node.ok("event", "list", "--slice", "exp")


def test_reboot_of_the_node_brings_everything_back(node: Node) -> None:
    node.create("runs")
    node.create("rests")
    node.inside("runs", "echo kept > /root/file; sync")
    node.ok("stop", "rests")
    node.box.reboot()
    node.box.run([BIN / "slicemgr", "init"], check=True)
    node.start_web()
    node.start_agent()
    node.ok("wait", "runs", "--timeout", "60s")
    assert node.inside("runs", "cat /root/file") == "kept\n"
    assert node.show("rests")["state"] == "stopped"
    node.agrees()


def test_a_second_agent_refuses(node: Node) -> None:
    second = node.box.run([BIN / "slicemgr", "agent"], timeout=30)
    assert second.returncode == 4
    assert "another agent runs" in second.stderr


def test_flushed_rules_are_healed(node: Node) -> None:
    node.create("exp")
    node.box.run(["iptables-legacy", "-t", "nat", "-F"], check=True)
    eventually(lambda: node.ssh("exp", "true").returncode == 0, "the doors are open again", 30)


def test_leftovers_are_shown_and_removed_and_the_foreign_stays(node: Node) -> None:
    node.create("exp")
    pool = "/var/lib/slicemgr/pool"
    node.box.run(["btrfs", "subvolume", "create", f"{pool}/slivers/zzzzzzzz-0"], check=True)
    node.box.run(["btrfs", "subvolume", "create", f"{pool}/mine"], check=True)
    found = json.loads(node.ok("gc", "-f", "json"))
    assert [(one["what"], one["name"]) for one in found] == [("sliver", f"{pool}/slivers/zzzzzzzz-0")]
    node.ok("gc", "--yes")
    assert json.loads(node.ok("gc", "-f", "json")) == []
    assert node.box.run(["test", "-d", f"{pool}/mine"]).returncode == 0
    assert node.inside("exp", "id -u") == "0\n"


def test_delete_during_create_leaves_nothing(node: Node) -> None:
    ask(node, "create", "exp", "--count", "6")
    time.sleep(0.3)
    node.ok("delete", "exp")
    assert json.loads(node.ok("list", "-f", "json")) == []
    node.agrees()

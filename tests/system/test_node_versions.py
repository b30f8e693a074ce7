"""Nodes of the version before with a centre of this one, and the documented order of an update, while slivers run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import demo
import previous_version
import pytest
from boxed_testbed import RECIPE, BoxedTestbed
from demo import VENV
from nodebox_box import Box
from ssh_connection import Connection
from test_testbed import hostname_at_console
from testbed import STARTED, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
PREFIX = "older-"
SLICE = "demo"  # the name that `hostname_at_console` expects
STOPPED_LAST = ("web", "hub", "signer")  # of the centre, in the order in which an update stops them


@pytest.fixture(scope="module")
def older() -> Path:
    return previous_version.venv()


@pytest.fixture(scope="module")
def testbed(older: Path) -> Iterator[BoxedTestbed]:
    """All of the version before."""
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    made = BoxedTestbed(PREFIX, nodes_venv=older, centre_venv=older)
    made.destroy()
    try:
        made.start()
        yield made
    finally:
        made.destroy()


@pytest.fixture(scope="module")
def connections(testbed: BoxedTestbed) -> Iterator[dict[str, Connection]]:
    """To each sliver of a slice over all nodes, by node, from before the first update."""
    create(testbed, SLICE)
    key = demo.ensure_key()
    found = {one["node"]: Connection(one["ssh"], key) for one in slivers(testbed, SLICE)}
    eventually(lambda: all(one.answered > 2 for one in found.values()), "the connections are open", 60)
    yield found
    assert {name: one.close() for name, one in found.items()} == dict.fromkeys(found, 0)


def create(testbed: BoxedTestbed, name: str) -> None:
    """One sliver on each node. A node that has not reported yet would get none."""
    testbed.import_image()
    eventually(lambda: {one.get("liveness", "alive") for one in testbed.listed()} == {"alive"}, "all nodes report", 120)
    key, nodes = f"{demo.ensure_key()}.pub", ",".join(testbed.nodes)
    words = ("--type", "lxc", "--image", RECIPE, "--node", nodes, "--count", "3", "--ssh-key", key)
    testbed.centre.slicectl("create", name, *words)


def slivers(testbed: BoxedTestbed, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = testbed.ask("show", name)["slivers"]
    return found


def inside(testbed: BoxedTestbed, name: str, script: str) -> list[str]:
    """The output of a script in each sliver, by index."""
    login = ("ssh", "-i", demo.ensure_key())
    return [
        testbed.centre.slicectl(*login, f"{name}/{number}", "--", script).strip()
        for number in range(len(testbed.nodes))
    ]


def is_version(box: Box, daemon: str, venv: Path) -> bool:
    """Whether a program of the box is of the version in a virtual environment."""
    pid = box.daemon(daemon)
    return pid is not None and f"{venv}/bin/".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def stop(box: Box, *daemons: str) -> None:
    """As systemd does."""
    for daemon in daemons:
        box.signal_daemon(daemon, signal.SIGTERM, 150)


def left(testbed: BoxedTestbed, node: str) -> list[dict[str, Any]]:
    """What no row names; the node removes marks of domains that have ended by itself."""
    found: list[dict[str, Any]] = json.loads(testbed.centre.slicectl("gc", "--node", node, "-f", "json"))
    return found


def works(testbed: BoxedTestbed, connections: dict[str, Connection]) -> None:
    """What a tenant does, over all nodes, and the open connections."""
    before = {name: one.sent for name, one in connections.items()}
    create(testbed, "core")
    assert {one["node"] for one in slivers(testbed, "core")} == set(testbed.nodes)
    assert inside(testbed, "core", "hostname; echo precious > /root/data; sync") == ["core-0", "core-1", "core-2"]
    testbed.centre.slicectl("snapshot", "create", "core", "first")
    inside(testbed, "core", "echo other > /root/data; sync")
    testbed.centre.slicectl("stop", "core")
    assert {one["state"] for one in slivers(testbed, "core")} == {"stopped"}
    testbed.centre.slicectl("start", "core")
    assert inside(testbed, "core", "cat /root/data") == ["other"] * 3
    testbed.centre.slicectl("pause", "core")
    assert {one["state"] for one in slivers(testbed, "core")} == {"paused"}
    testbed.centre.slicectl("resume", "core")
    testbed.centre.slicectl("snapshot", "restore", "core", "first")
    assert inside(testbed, "core", "cat /root/data") == ["precious"] * 3
    found = json.loads(testbed.centre.slicectl("op", "list", "--slice", "core", "-f", "json"))
    assert {one["state"] for one in found} == {"done"}, found
    testbed.centre.slicectl("delete", "core")
    for node in testbed.nodes.values():
        listed = node.box.run(["virsh", "-q", "-c", "lxc:///system", "list", "--name"], check=True).stdout.split()
        assert len(listed) == 1, f"{SLICE} alone is on {node.name}: {listed}"
        eventually(lambda name=node.name: left(testbed, name) == [], f"{node.name} has nothing left over", 120)  # type: ignore[misc]
    for name, one in connections.items():
        eventually(lambda one=one, name=name: one.answered > before[name], f"{name} answers", 60)  # type: ignore[misc]


def test_before_the_update(testbed: BoxedTestbed, older: Path, connections: dict[str, Connection]) -> None:
    """The control of what follows: everything is of the version before."""
    assert all(is_version(testbed.centre.box, one, older) for one in STOPPED_LAST)
    with pytest.raises(AssertionError, match="4 == 0"):
        hostname_at_console(testbed, f"{SLICE}/0")


def test_the_centre_is_updated_first(testbed: BoxedTestbed, older: Path, connections: dict[str, Connection]) -> None:
    """As docs/how-to/nodes.md says. The nodes of the version before then do everything that they did."""
    centre, started = testbed.centre, inside(testbed, SLICE, STARTED)
    centre.daemons.venv = VENV
    stop(centre.box, *STOPPED_LAST)
    centre.daemons.shell(f"{VENV}/bin/slicemgr db upgrade")
    testbed.start()
    assert all(is_version(centre.box, one, VENV) for one in STOPPED_LAST)
    for node in testbed.nodes.values():
        assert is_version(node.box, "agent", older) and is_version(node.box, "link", older)
    eventually(lambda: {one["liveness"] for one in testbed.listed()} == {"alive"}, "all nodes report", 120)
    works(testbed, connections)
    assert set(testbed.ask("top", "--once")["missing"]) == set(testbed.nodes), "what they cannot do is said"
    assert inside(testbed, SLICE, STARTED) == started


@pytest.mark.parametrize("name", ["n1", "n2", "n3"])
def test_nodes_are_updated_one_by_one(
    testbed: BoxedTestbed, older: Path, connections: dict[str, Connection], name: str
) -> None:
    """With nodes of both versions at the same time. What only the newer one has then works, too."""
    node, started = testbed.nodes[name], inside(testbed, SLICE, STARTED)
    (index,) = [one["index"] for one in slivers(testbed, SLICE) if one["node"] == name]
    stop(node.box, "link", "agent")
    node.daemons.venv = VENV
    testbed.start()
    assert is_version(node.box, "agent", VENV) and is_version(node.box, "link", VENV)
    eventually(lambda: {one["liveness"] for one in testbed.listed()} == {"alive"}, "all nodes report", 120)
    works(testbed, connections)
    assert hostname_at_console(testbed, f"{SLICE}/{index}") == f"at {SLICE}-{index}"
    missing = set(testbed.ask("top", "--once")["missing"])
    assert missing == {one.name for one in testbed.nodes.values() if one.daemons.venv == older}
    assert inside(testbed, SLICE, STARTED) == started

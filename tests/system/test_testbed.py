"""A whole testbed in boxes, as `make testbed` makes it: hosts join by the printed line, one of them behind NAT."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boxed_testbed
import demo
import nodebox_network
import pytest
from boxed_faults import kill
from boxed_node import BoxedNode
from boxed_testbed import RECIPE, BoxedTestbed
from demo import VENV
from nodebox_box import BOXES
from nodebox_switch import SWITCHES, Switch
from testbed import eventually

pytestmark = pytest.mark.long
PREFIX = "try-"
PORT = 9999


def traces() -> dict[str, list[str]]:
    """What the testbed has on the host, by kind."""
    mine = f"{demo.CLONE}.switch"
    return {
        "boxes": [one.name for one in BOXES.glob(f"{PREFIX}*-{demo.CLONE}")],
        "switches": [one.name for one in SWITCHES.glob(f"{PREFIX}*-{demo.CLONE}")],
        "cgroups": [str(one) for one in Path("/sys/fs/cgroup").rglob(f"nodebox-{PREFIX}*{mine}")],
        "links": [
            one.name
            for one in Path("/sys/class/net").iterdir()
            if one.name == nodebox_network.host_device(f"{PREFIX}switch-{mine}")
        ],
    }


@pytest.fixture(scope="module")
def testbed() -> Iterator[BoxedTestbed]:
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    made = BoxedTestbed(PREFIX)
    made.destroy()
    try:
        made.start()
        yield made
    finally:
        made.destroy()
        assert not any(traces().values()), traces()


def daemons(testbed: BoxedTestbed) -> dict[str, int | None]:
    centre, nodes = testbed.centre.box, [node.box for node in testbed.nodes.values()]
    every = [(centre, tag) for tag in ("postgres", "rabbitmq", "signer", "hub", "web", "nginx")]
    every += [(box, tag) for box in nodes for tag in ("link", "agent", "libvirtd")]
    return {f"{box.name} {tag}": box.daemon(tag) for box, tag in every}


def shown(testbed: BoxedTestbed, name: str) -> dict[str, Any]:
    return next(one for one in testbed.listed() if one["name"] == name)


def connects(argv: list[str], address: str) -> bool:
    """Whether a TCP connection to PORT opens, from where the command prefix leads."""
    script = f"exec timeout 3 bash -c ': <>/dev/tcp/{address}/{PORT}'"
    return subprocess.run([*argv, "sh", "-c", script], capture_output=True, timeout=60).returncode == 0


def test_hosts_join_and_report_their_addresses(testbed: BoxedTestbed) -> None:
    found = {one["name"]: (one["state"], one["site"], one["address"]) for one in testbed.listed()}
    assert found == {name: ("active", node.site, node.address) for name, node in testbed.nodes.items()}
    assert len({node.address for node in testbed.nodes.values()}) == len(found)
    assert testbed.centre.sign_in_link().startswith(f"{testbed.centre.url}/sign-in-link/")


def test_nothing_reaches_the_node_behind_nat(testbed: BoxedTestbed) -> None:
    """So its link opened the connection. The control is its router."""
    node = testbed.nodes["n3"]
    node.box.background("listener", [sys.executable, "-m", "http.server", str(PORT)])
    eventually(lambda: connects(node.box.outside_prefix, node.box.address), "its router reaches it", 60)
    assert not connects(testbed.centre.box.prefix, node.address)
    assert not connects(testbed.centre.box.prefix, node.box.address)
    near = testbed.nodes["n1"]
    near.box.background("listener", [sys.executable, "-m", "http.server", str(PORT)])
    eventually(lambda: connects(testbed.centre.box.prefix, near.address), "a node without NAT is reached", 60)


def test_a_second_start_changes_nothing(testbed: BoxedTestbed) -> None:
    before = daemons(testbed)
    assert None not in before.values()
    testbed.start()
    assert daemons(testbed) == before


def test_the_report_of_a_node_without_a_link_ages(testbed: BoxedTestbed) -> None:
    node = testbed.nodes["n2"]
    node.box.signal_daemon("link", signal.SIGKILL)
    time.sleep(1)  # what the hub has received is stored
    last, others = shown(testbed, "n2")["beat_at"], shown(testbed, "n1")["beat_at"]
    eventually(lambda: shown(testbed, "n1")["beat_at"] > others, "the others report", 120)
    assert shown(testbed, "n2")["beat_at"] == last
    testbed.start()
    eventually(lambda: shown(testbed, "n2")["beat_at"] > last, "it reports again", 120)


def test_a_slice_over_all_nodes(testbed: BoxedTestbed) -> None:
    """With a login to each sliver, also through the router of the node behind NAT.

    One node imports the image, which others reach, and extracts its files. The others receive the base as a stream, of
    which the service sends at most about one copy, since they get it from that node.
    """
    lines = testbed.create_slice(demo.ensure_key()).splitlines()
    assert lines == ["root", "demo-0", "root", "demo-1", "root", "demo-2"]
    logs = {name: node.daemons.log("agent") for name, node in testbed.nodes.items()}
    (importer,) = [name for name, log in logs.items() if "was extracted" in log]
    assert importer not in boxed_testbed.BEHIND_NAT
    others = set(logs) - {importer}
    assert {name for name, log in logs.items() if "was received" in log} == others
    files = {one["node"]: (one["disk"], one["base"]) for one in testbed.ask("image", "list", "--nodes")}
    assert files == {importer: ("ready", "ready"), **dict.fromkeys(others, ("", "ready"))}
    pattern = re.compile(r"([0-9]+) of ([0-9]+) blocks came from")
    fetched = {name: pattern.findall(logs[name])[-1] for name in others}
    print(f"blocks of the stream from the service, of all: {fetched}")
    whole = int(fetched[next(iter(others))][1])
    assert sum(int(one) for one, _ in fetched.values()) <= 1.2 * whole, fetched


def hostname_at_console(testbed: BoxedTestbed, target: str) -> str:
    """What a shell at the console answers."""
    found = testbed.centre.client()
    environment = {"SLICEMGR_URL": found["url"], "SLICEMGR_TOKEN": found["token"]}
    words = [str(VENV / "bin/slicectl"), "console", target]
    settings = {**os.environ, **environment, "SSL_CERT_FILE": str(testbed.centre.authority)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=settings) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\necho at $(hostname)\n")
        process.stdin.flush()
        answers = (re.search(r"at demo-\d", line) for line in process.stdout)  # the input stays open until then
        answer = next((one[0] for one in answers if one), "")  # after a prompt, and what was typed before it
        process.communicate(timeout=60)
    assert process.returncode == 0
    return answer


def test_consoles_and_samples_of_all_nodes(testbed: BoxedTestbed) -> None:
    """Of the slice of the last test. The nodes connect to the service, through nginx, the third from behind NAT."""
    assert [hostname_at_console(testbed, f"demo/{number}") for number in range(3)] == [
        "at demo-0",
        "at demo-1",
        "at demo-2",
    ]

    def measured() -> set[str]:
        found = json.loads(testbed.centre.slicectl("top", "--once", "-f", "json"))
        assert found["missing"] == []
        return {one["node"] for one in found["slivers"]}

    eventually(lambda: measured() == set(testbed.nodes), "each node has a sample of its sliver", 120)
    [*rows] = json.loads(testbed.centre.slicectl("usage", "demo", "-f", "json"))
    assert len(rows) == 3 and all(one["running_seconds"] > 0 for one in rows)
    testbed.centre.slicectl("delete", "demo")


def cut_off(node: BoxedNode) -> None:
    """Kill agent and link: the slivers continue to run, and the centre hears nothing of them."""
    for daemon in ("link", "agent"):
        node.box.signal_daemon(daemon, signal.SIGKILL)


def login(testbed: BoxedTestbed, sliver: str) -> str:
    return testbed.centre.slicectl("ssh", "-i", demo.ensure_key(), sliver, "--", "hostname").strip()


def create(testbed: BoxedTestbed, name: str, *more: str) -> None:
    testbed.import_image()
    key = f"{demo.ensure_key()}.pub"
    testbed.centre.slicectl("create", name, "--type", "lxc", "--image", RECIPE, "--count", "3", "--ssh-key", key, *more)


def slivers(testbed: BoxedTestbed, name: str) -> dict[str, dict[str, Any]]:
    """By node."""
    return {one["node"]: one for one in testbed.ask("show", name)["slivers"]}


def containers(node: BoxedNode) -> list[str]:
    return node.box.run(["virsh", "-q", "-c", "lxc:///system", "list", "--name"], check=True).stdout.split()


def test_a_slice_takes_a_spare_of_a_host_that_joined(testbed: BoxedTestbed) -> None:
    """Each host keeps one. The rest of the module has none."""
    testbed.import_image()

    def keep(*spares: str) -> None:
        testbed.centre.spares = spares
        for program in ("hub", "web"):
            kill(testbed, program)
        testbed.start()

    def kept() -> dict[str, int]:
        return {one["name"]: one["used"]["spares"] for one in testbed.listed()}

    try:
        keep(f"lxc image={RECIPE}")
        eventually(lambda: set(kept().values()) == {1}, "each host has one", 300)
        key = ("--ssh-key", f"{demo.ensure_key()}.pub")
        for node in sorted(testbed.nodes):
            name = f"from-{node}"
            testbed.centre.slicectl("create", name, "--type", "lxc", "--image", RECIPE, "--node", node, *key)
            assert testbed.ask("show", name)["warm"] is True
            assert login(testbed, f"{name}/0") == f"{name}-0"
            testbed.centre.slicectl("delete", name)
    finally:
        keep()
    eventually(lambda: set(kept().values()) == {0}, "they are gone", 120)


def test_a_part_waits_for_a_node_that_was_killed(testbed: BoxedTestbed) -> None:
    """The slivers on the other nodes are usable meanwhile; the operation ends when the node is back."""
    testbed.import_image()
    cut_off(testbed.nodes["n2"])
    create(testbed, "waits", "--no-wait")

    def operation() -> dict[str, Any]:
        found: list[dict[str, Any]] = testbed.ask("op", "list", "--slice", "waits")
        return found[0]

    def parts() -> dict[str, str]:
        return {one["node"]: one["state"] for one in operation()["parts"]}

    eventually(lambda: (parts()["n1"], parts()["n3"]) == ("done", "done"), "the others have done theirs", 300)
    assert (operation()["state"], parts()["n2"]) == ("running", "queued")
    made = slivers(testbed, "waits")
    for name in ("n1", "n3"):
        assert made[name]["state"] == "running"
        assert login(testbed, f"waits/{made[name]['index']}") == f"waits-{made[name]['index']}"
    testbed.start()
    eventually(lambda: operation()["state"] == "done", "it ends when the node is back", 300)
    assert login(testbed, f"waits/{made['n2']['index']}") == f"waits-{made['n2']['index']}"
    testbed.centre.slicectl("delete", "waits")


def test_a_lost_node_is_evacuated_and_returns(testbed: BoxedTestbed) -> None:
    """Its slivers run elsewhere. The old copy ends when the node returns, and its disk is kept."""
    create(testbed, "moves")
    node, before = testbed.nodes["n2"], slivers(testbed, "moves")
    sliver = before["n2"]
    domain = f"sm-{sliver['id']}"
    assert domain in containers(node)
    cut_off(node)
    eventually(lambda: shown(testbed, "n2")["liveness"] == "silent", "the hub notes it", 120)
    with pytest.raises(subprocess.CalledProcessError):  # it is not lost yet
        testbed.centre.slicectl("node", "evacuate", "n2", "--yes")
    testbed.centre.slicectl("node", "evacuate", "n2", "--lost", "--yes")
    testbed.centre.slicectl("wait", "moves")
    after = {one["index"]: one for one in testbed.ask("show", "moves")["slivers"]}
    assert {one["node"] for one in after.values()} == {"n1", "n3"}
    new = after[sliver["index"]]
    assert new["id"] == sliver["id"] and new["ssh"]["host_key"] != sliver["ssh"]["host_key"]
    for index in after:
        assert login(testbed, f"moves/{index}") == f"moves-{index}"
    assert domain in containers(node), "control: nobody has stopped the old copy yet"
    testbed.start()
    eventually(lambda: domain not in containers(node), "the node stops it", 120)
    pool = Path("/var/lib/slicemgr/pool")
    assert not node.box.path(pool / "slivers" / sliver["id"]).exists()
    (kept,) = node.box.path(pool / "kept").iterdir()
    assert kept.name.startswith(f"{sliver['id']}.") and (kept / "root/etc/hostname").read_text().strip()
    items = json.loads(testbed.centre.slicectl("gc", "--node", "n2", "-f", "json"))
    assert [one["what"] for one in items if one["what"] == "kept disk"] == ["kept disk"]
    assert login(testbed, f"moves/{sliver['index']}") == f"moves-{sliver['index']}"
    assert shown(testbed, "n2")["liveness"] == "alive"
    testbed.centre.slicectl("delete", "moves")


def refused(node: BoxedNode) -> bool:
    """Whether the newest attempt of the link to connect failed."""
    lines = [line for line in node.daemons.log("link").splitlines() if "onnect" in line]
    return "no connection to the centre" in lines[-1]


def test_a_removed_node_is_out_and_can_join_again(testbed: BoxedTestbed) -> None:
    node = testbed.nodes["n2"]
    assert not refused(node)
    testbed.centre.slicectl("node", "remove", "n2", "--yes")
    assert "n2" not in {one["name"] for one in testbed.listed()}
    eventually(lambda: refused(node), "its certificate is of no use", 120)
    testbed.start()
    assert shown(testbed, "n2")["state"] == "active"


def test_after_the_switch_was_killed_it_is_restored(testbed: BoxedTestbed) -> None:
    pid = Switch(testbed.switch.name).pid
    assert pid is not None
    subprocess.run(["kill", "-9", str(pid)], check=True)
    eventually(lambda: testbed.switch.pid is None, "it has ended", 30)
    testbed.start()
    assert {one["state"] for one in testbed.listed()} == {"active"}


@pytest.mark.parametrize("seconds", [1.0, 8.0])
def test_what_a_killed_start_leaves_is_removed(seconds: float) -> None:
    words = [sys.executable, "-c", f"from boxed_testbed import *; BoxedTestbed({PREFIX + 'cut-'!r}).start()"]
    with subprocess.Popen(words, cwd=demo.HERE, stderr=subprocess.DEVNULL) as maker:
        time.sleep(seconds)
        maker.kill()
    boxed_testbed.BoxedTestbed(PREFIX + "cut-").destroy()
    eventually(lambda: not any("cut" in name for some in traces().values() for name in some), "all is gone", 60)

"""Network rates against a tenant who tries to exceed them as root; an unlimited sliver is the control."""

from __future__ import annotations

import json
import time

import pytest
from testbed import IMAGE, Node, eventually

from slicemgr import names

MBIT = 10**6
RATE = 20 * MBIT
FREE = 5 * RATE  # unlimited traffic is far faster than this
SECONDS = 3
RATES = {"in": ("--net-in", "20Mbit"), "out": ("--net-out", "20Mbit")}


def measured(node: Node, target: str, direction: str, *more: str) -> float:
    """Bits per second that arrive, from the node into the sliver (`in`) or the other way (`out`)."""
    sliver = node.show(target)["slivers"][0]
    node.inside(target, "pgrep iperf3 >/dev/null || iperf3 -s -D")
    words = [
        "iperf3",
        "-c",
        sliver["address"],
        "-t",
        str(SECONDS),
        "-J",
        *(["-R"] if direction == "out" else []),
        *more,
    ]

    def run() -> dict[str, dict[str, dict[str, float]]] | None:
        told = json.loads(node.box.run(words, timeout=60).stdout)
        return None if "error" in told else told  # the server may not listen yet

    ended = eventually(run, "iperf3 has measured", 20)["end"]
    return float((ended.get("sum_received") or ended["sum"])["bits_per_second"])


def holds(node: Node, target: str, direction: str, *more: str) -> None:
    """In one of three measurements: a machine that is busy may carry less, but never more."""
    rates = [measured(node, target, direction, *more)]
    while rates[-1] < 0.75 * RATE and len(rates) < 3:
        rates.append(measured(node, target, direction, *more))
    assert max(rates) <= 1.1 * RATE and rates[-1] >= 0.75 * RATE, rates


@pytest.mark.parametrize("direction", [pytest.param("in", marks=pytest.mark.long), "out"])
def test_a_rate_holds_in_its_direction_alone(node: Node, direction: str) -> None:
    other = {"in": "out", "out": "in"}[direction]
    sliver = node.create("slow", *RATES[direction])["slivers"][0]
    node.create("free")
    assert (sliver["limits"][f"net_{direction}"], sliver["limits"][f"net_{other}"]) == (RATE, None)
    holds(node, "slow", direction)
    assert measured(node, "slow", other) > FREE
    assert measured(node, "free", direction) > FREE


@pytest.mark.long
def test_many_connections_and_datagrams_share_the_rate(node: Node) -> None:
    node.create("slow", *RATES["in"], *RATES["out"])
    for direction in ("in", "out"):
        holds(node, "slow", direction, "-P", "8")
        assert (rate := measured(node, "slow", direction, "-u", "-b", "200M")) <= 1.1 * RATE, rate


TAKE_OFF = """
for kind in root ingress clsact; do tc qdisc del dev eth0 $kind; done
tc qdisc replace dev eth0 root pfifo limit 10000
ip link set eth0 txqueuelen 10000 mtu 9000
ip link set eth0 down; ip link set eth0 up; ip route replace default via 169.254.1.1 dev eth0 onlink
ip link add ifb9 type ifb
tc qdisc show dev eth0
"""


def test_root_inside_cannot_lift_it(node: Node) -> None:
    node.create("slow", *RATES["in"], *RATES["out"])
    assert "tbf" not in node.inside("slow", f"({TAKE_OFF}) 2>&1; true")
    holds(node, "slow", "in")
    holds(node, "slow", "out")


def kernel_says(node: Node, sliver: str) -> str:
    told = [node.box.run(["tc", "qdisc", "show", "dev", name(sliver)]).stdout for name in (names.link, names.shaper)]
    return "".join(told)


def test_what_the_control_lacks_is_what_holds_the_rate(node: Node) -> None:
    """The same sliver after the node's root removed its buckets: the measurement shows the difference."""
    sliver = node.create("slow", *RATES["in"], *RATES["out"])["slivers"][0]["id"]
    assert kernel_says(node, sliver).count("tbf") == 2
    node.box.run(["tc", "qdisc", "del", "dev", names.link(sliver), "root"], check=True)
    node.box.run(["tc", "qdisc", "del", "dev", names.link(sliver), "ingress"], check=True)
    assert measured(node, "slow", "in") > FREE
    assert measured(node, "slow", "out") > FREE


@pytest.mark.long
def test_a_new_agent_leaves_it_and_a_new_link_gets_it(node: Node) -> None:
    sliver = node.create("slow", *RATES["in"], *RATES["out"])["slivers"][0]["id"]
    before = kernel_says(node, sliver)
    node.kill("agent")
    node.start_agent()
    assert kernel_says(node, sliver) == before
    for action in ("restart", "stop"):
        node.ok(action, "slow")
        node.agrees()
    assert kernel_says(node, sliver) == "", "neither link nor shaper of a stopped sliver is there"
    node.ok("start", "slow")
    assert kernel_says(node, sliver).count("tbf") == 2
    holds(node, "slow", "in")
    holds(node, "slow", "out")


def test_a_removed_shaper_stops_the_traffic_and_comes_back(node: Node) -> None:
    """Without its shaper, a link passes nothing, rather than everything, until the agent observes it again."""
    sliver = node.create("slow", *RATES["out"])["slivers"][0]["id"]
    node.box.run(["ip", "link", "del", names.shaper(sliver)], check=True)
    eventually(lambda: "tbf" in kernel_says(node, sliver), "the agent has made it again", 30)
    holds(node, "slow", "out")
    assert "repair" in node.ok("event", "list", "--slice", "slow")


def test_a_shaper_of_nobody_is_left_over_and_a_foreign_one_stays(node: Node) -> None:
    for device in ("smizzzzzzzz-0", "ifb-mine"):
        node.box.run(["ip", "link", "add", device, "type", "ifb"], check=True)
    try:
        found = json.loads(node.ok("gc", "-f", "json"))
        assert [(one["what"], one["name"]) for one in found] == [("shaper", "smizzzzzzzz-0")]
        node.ok("gc", "--yes")
        assert json.loads(node.ok("gc", "-f", "json")) == []
        assert node.box.run(["ip", "link", "show", "ifb-mine"]).returncode == 0
    finally:
        node.box.run(["ip", "link", "del", "ifb-mine"])


def test_a_sliver_that_ends_by_itself_is_shaped_again(node: Node) -> None:
    sliver = node.create("slow", *RATES["out"])["slivers"][0]["id"]
    node.box.run(["virsh", "-c", "lxc:///system", "destroy", f"sm-{sliver}"], check=True)
    time.sleep(1)
    node.ok("wait", "slow", "--timeout", "300s")
    eventually(
        lambda: "tbf" in kernel_says(node, sliver) and node.ssh("slow", "true").returncode == 0, "it is back", 60
    )
    holds(node, "slow", "out")


def test_a_rate_nobody_can_hold_is_refused(node: Node) -> None:
    words = ("create", "slow", "--type", "lxc", "--image", IMAGE, "--ssh-key", f"{node.key}.pub", "--net-in", "1kbit")
    said = node.slicectl(*words)
    assert said.returncode != 0
    assert "--net-in" in said.stderr and "64kbit to 100Gbit" in said.stderr


def test_doctor_and_facts_say_what_the_kernel_can(node: Node) -> None:
    checks = {one["name"]: one for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
    assert checks["network rates"]["ok"] is True
    facts = json.loads(node.ok("node", "show", "-f", "json"))["facts"]
    assert (facts["net_rate"], facts["net_rate_missing"]) == (True, [])

"""Connection tracking as a resource: connections from or to one sliver do not exhaust those of others and the node.

Each check runs a second time with a control whose limits cannot be reached, where it must fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from firewall_net import A0, A1, ALL, B0, GATEWAY, NO, NODE, OUTSIDE, YES, Net, Task, built, tcp, udp

MOST, RATE = 320, 20
FLOOD = 4000
LIMITS: dict[str, Any] = {"connections": MOST, "connection_rate": RATE}
OUT_OF_REACH: dict[str, Any] = {"connections": 1_000_000, "connection_rate": 1_000_000}
A0_ADDRESS, B0_ADDRESS = str(A0[2]), str(B0[2])
NOBODY = 9  # a port without a listener


@pytest.fixture(scope="module", params=["legacy", "restore"])
def topology(request: pytest.FixtureRequest) -> Iterator[Net]:
    with built(request.param) as net:
        yield net


@pytest.fixture
def net(topology: Net) -> Iterator[Net]:
    """The topology without rules or connections: the kernel forgets rates and counts with the rules."""
    yield topology
    topology.try_all(*((peer, {"task": "release"}) for peer in ("a0", "outside")))
    topology.node.firewall("remove", topology.setting)
    topology.node.ask({"task": "forget_all"})


def flood(host: str, port: int = NOBODY, protocol: str = "udp", count: int = FLOOD) -> Task:
    return {"task": "flood", "host": host, "port": port, "count": count, "protocol": protocol}


def tracked(net: Net, address: str) -> int:
    return int(net.node.ask({"task": "tracked", "addresses": [address]})[0][address])


def flooded(net: Net, peer: str, task: Task, address: str) -> tuple[int, float]:
    """How many connections of the address there are after a flood, and how many its limits allow."""
    before = time.monotonic()
    net.try_all((peer, task))
    found = tracked(net, address)
    return found, MOST + RATE * (time.monotonic() - before)


TOWARDS: list[tuple[str, Task]] = [
    ("the world by UDP", flood(OUTSIDE)),
    ("the world by TCP", flood(OUTSIDE, 80, "tcp")),
    ("the world by ICMP", flood(OUTSIDE, protocol="icmp")),
    ("the gateway by ICMP", flood(GATEWAY, protocol="icmp")),
    ("a mate", flood("10.77.0.3")),
    ("another slice's port", flood(NODE, 10040)),
    ("its own port", flood(NODE, 10001)),
]


@pytest.mark.parametrize("task", [task for _, task in TOWARDS], ids=[name for name, _ in TOWARDS])
def test_what_a_sliver_opens_is_limited_and_others_go_on(net: Net, task: Task) -> None:
    net.publish(full=True, **LIMITS)
    found, most = flooded(net, "a0", task, A0_ADDRESS)
    assert MOST / 2 < found <= most
    # Others, including the flooded sliver, reach the node, the sliver and the outside as before.
    assert net.try_all(
        ("outside", tcp(NODE, 10040)),
        ("outside", tcp(NODE, 10020)),
        ("outside", tcp(NODE, 10000)),
        ("outside", tcp(NODE, 2222)),
        ("b0", tcp(OUTSIDE, 80)),
        ("a1", udp(OUTSIDE, 80)),
        ("node", tcp(OUTSIDE, 80)),
    ) == [
        f"b0 {OUTSIDE} 22",
        f"a1 {OUTSIDE} 22",
        f"a0 {OUTSIDE} 22",
        f"node {OUTSIDE} 2222",
        *[f"outside {NODE} 80"] * 3,
    ]
    net.node.ask({"task": "forget_all"})
    net.publish(full=True, **OUT_OF_REACH)
    found, most = flooded(net, "a0", task, A0_ADDRESS)
    assert found > FLOOD / 2 > most


def test_what_is_opened_to_a_sliver_from_outside_is_limited(net: Net) -> None:
    net.publish(full=True, **LIMITS)
    found, most = flooded(net, "outside", flood(NODE, 10040), B0_ADDRESS)
    assert MOST / 2 < found <= most
    assert net.try_all(
        ("outside", tcp(NODE, 10000)), ("outside", tcp(NODE, 2222)), ("b0", tcp(OUTSIDE, 80)), ("a0", tcp(NODE, 10040))
    ) == [f"a0 {OUTSIDE} 22", f"node {OUTSIDE} 2222", f"outside {NODE} 80", f"b0 {GATEWAY} 22"]
    net.publish(full=True, **OUT_OF_REACH)
    found, most = flooded(net, "outside", flood(NODE, 10040), B0_ADDRESS)
    assert found > FLOOD / 2 > most


HOLD: Task = {"task": "hold", "host": OUTSIDE, "port": 80, "count": 400, "wait": NO}
BY_COUNT: dict[str, Any] = {"connections": 256, "connection_rate": 1_000_000}
# The kernel forgets a connection whose first packet another processor has held up for two ticks, for example because
# the host took that processor away (find_or_evict in nf_conncount.c).
COUNTED = 256 + 8
ONE_SYN = 2 * NO  # seconds: less than until the kernel sends it again
VISITS: Task = {"task": "visits", "host": OUTSIDE, "port": 80, "count": 400, "wait": ONE_SYN}
BY_RATE: dict[str, Any] = {"connections": 256, "connection_rate": 1}


def test_connections_that_stay_are_counted_until_they_end(net: Net) -> None:
    """Also the control of the rate, which on its own would let all of them pass."""
    net.publish(full=True, **BY_COUNT)
    (held,) = net.try_all(("a0", HOLD))
    assert 128 < held <= COUNTED
    assert net.try_all(("a1", tcp(OUTSIDE, 80))) == [f"outside {NODE} 80"]
    net.try_all(("a0", {"task": "release"}))
    assert net.try_all(("a0", tcp(OUTSIDE, 80))) == [f"outside {NODE} 80"]
    net.publish(full=True, **OUT_OF_REACH)
    assert net.try_all(("a0", {**HOLD, "wait": YES})) == [400]


def test_connections_that_end_at_once_are_limited_by_their_rate(net: Net) -> None:
    net.publish(full=True, **BY_RATE)
    before = time.monotonic()
    # On a busy host, an answer may arrive after the timeout of the visits.
    assert 128 < net.try_all(("a0", VISITS))[0] <= 256 + time.monotonic() - before
    net.publish(full=True, **BY_COUNT)
    assert net.try_all(("a0", {**VISITS, "wait": YES})) == [400]


def test_a_change_of_slivers_does_not_begin_the_count_anew(net: Net) -> None:
    """The kernel forgets the count with the rule: the control writes the rule again."""
    net.publish([A0, A1], full=True, **BY_COUNT)
    assert net.try_all(("a0", HOLD))[0] <= COUNTED
    net.publish(ALL, **BY_COUNT)
    assert net.try_all(("a0", HOLD))[0] <= COUNTED
    net.publish(ALL, full=True, **BY_COUNT)
    assert net.try_all(("a0", {**HOLD, "count": 64, "wait": 8 * NO}))[0] > COUNTED


def test_a_stream_that_nobody_answers_is_one_connection(net: Net) -> None:
    net.publish(full=True, **BY_RATE)

    def arrived() -> int:
        return int(net.peers["outside"].shell("nstat -asz UdpNoPorts").split("UdpNoPorts")[1].split()[0])

    before = arrived()
    net.try_all(("a0", {"task": "stream", "host": OUTSIDE, "port": NOBODY, "count": 2000}))
    assert tracked(net, A0_ADDRESS) == 1
    assert arrived() - before > 1000


def test_the_nodes_own_services_can_do_without_tracking(net: Net) -> None:
    net.publish(full=True, untracked=[2222])
    local = ("node", tcp("127.0.0.1", 2222))
    assert net.try_all(("outside", tcp(NODE, 2222)), local) == [f"node {OUTSIDE} 2222", "node 127.0.0.1 2222"]
    assert (tracked(net, OUTSIDE), tracked(net, "127.0.0.1")) == (0, 0)
    assert net.try_all(("a0", tcp(NODE, 2222, NO)), ("outside", tcp(NODE, 10000))) == [None, f"a0 {OUTSIDE} 22"]
    net.publish(full=True)
    assert net.try_all(("outside", tcp(NODE, 2222, YES)), local) == [f"node {OUTSIDE} 2222", "node 127.0.0.1 2222"]
    assert (tracked(net, OUTSIDE), tracked(net, "127.0.0.1")) != (0, 0)
    assert "notrack" not in net.save().lower()

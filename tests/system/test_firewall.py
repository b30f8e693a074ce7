"""The packet filter with real packets: a node, two slices, an outside host, other networks; over both backends."""

from __future__ import annotations

import fcntl
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from firewall_net import (
    A0,
    A1,
    ALL,
    B0,
    DENIED,
    GATEWAY,
    NO,
    NODE,
    OUTSIDE,
    SLIVERS,
    TAG_B,
    YES,
    Net,
    Peer,
    Task,
    built,
    ping,
    spoof,
    tcp,
    udp,
)
from testbed import eventually

from slicemgr import names
from slicemgr.config import NetworkConfig
from slicemgr.drivers.network import firewall_trial

WEAKENED = """
from slicemgr.drivers.network import firewall_legacy, firewall_trial

def encode(ipv6, rule, really=firewall_legacy._encode):
    matches = (one._replace(options=()) if one.module == "rpfilter" else one for one in rule.matches)
    return really(ipv6, rule._replace(matches=tuple(matches)))

firewall_legacy._encode = encode
firewall_trial.main()
"""


@pytest.fixture(scope="module", params=["legacy", "restore"])
def topology(request: pytest.FixtureRequest) -> Iterator[Net]:
    with built(request.param) as net:
        yield net


@pytest.fixture
def net(topology: Net) -> Net:
    """The topology with all slivers published."""
    topology.publish(full=True)
    return topology


def test_every_door_leads_where_it_should_from_everywhere(net: Net) -> None:
    doors = [(10000, "a0", 22), (10001, "a0", 10001), (10019, "a0", 10019), (10020, "a1", 22), (10039, "a1", 10039)]
    doors.append((10040, "b0", 22))
    # Behind the node, a sliver has the address of the node; an outside host and the node have their own.
    seen = {"outside": OUTSIDE, "node": NODE, "a0": GATEWAY, "b0": GATEWAY}
    calls = [(caller, kind(NODE, port)) for caller in seen for port, _, _ in doors for kind in (tcp, udp)]
    wanted = [f"{to} {address} {inner}" for address in seen.values() for _, to, inner in doors for _ in (tcp, udp)]
    assert net.try_all(*calls) == wanted
    # Not through the loopback: that would take route_localnet. Nor beyond the block.
    assert net.try_all(("node", tcp("127.0.0.1", 10000, NO)), ("outside", tcp(NODE, 10041, NO))) == [None, None]


def test_slivers_of_one_slice_reach_one_another_and_the_world(net: Net) -> None:
    assert net.try_all(
        ("a0", tcp("10.77.0.3", 8080)),
        ("a1", udp("10.77.0.2", 8080)),
        ("a1", ping("10.77.0.2")),
        ("a0", tcp(OUTSIDE, 80)),
        ("b0", udp(OUTSIDE, 80)),
        ("b0", ping(OUTSIDE)),
    ) == [
        "a1 10.77.0.2 8080",
        "a0 10.77.0.3 8080",
        "pong",
        f"outside {NODE} 80",
        f"outside {NODE} 80",
        "pong",
    ]


FORBIDDEN = (
    ("b0", tcp("10.77.0.2", 8080, NO)),
    ("a0", tcp("10.77.0.4", 22, NO)),
    ("a0", udp("10.77.0.4", 8080, NO)),
    ("b0", ping("10.77.0.3", NO)),
    ("outside", tcp("10.77.0.2", 22, NO)),
    ("outside", udp("10.77.0.4", 8080, NO)),
    ("outside", ping("10.77.0.2", NO)),
    ("foreign", tcp("10.77.0.2", 22, NO)),
    ("bridged", tcp("10.77.0.2", 22, NO)),
    ("a0", tcp(NODE, 2222, NO)),
    ("b0", udp(NODE, 2222, NO)),
    ("b0", tcp(GATEWAY, 2222, NO)),
    ("a0", tcp("198.51.100.1", 2222, NO)),
    ("a0", ping(NODE, NO)),
    ("a0", tcp(DENIED, 80, NO)),
)


def test_what_is_forbidden_gets_no_answer(net: Net) -> None:
    assert net.try_all(*FORBIDDEN) == [None] * len(FORBIDDEN)
    assert net.try_all(
        ("a0", ping(GATEWAY)), ("outside", tcp(NODE, 2222)), ("outside", ping(NODE)), ("node", tcp(DENIED, 80))
    ) == ["pong", f"node {OUTSIDE} 2222", "pong", f"outside {NODE} 80"]


def heard(net: Net, peer: str) -> set[str]:
    return {text for _, text in net.peers[peer].ask({"task": "listen"})[0]}


def lies(round_: str) -> list[tuple[str, Task]]:
    """Datagrams from addresses that are not the sender's, and two honest ones."""
    return [
        ("a0", spoof("10.77.0.4", OUTSIDE, 80, f"{round_} as another sliver to the world")),
        ("a0", spoof("10.77.0.4", "10.77.0.3", 8080, f"{round_} as another sliver to a mate")),
        ("a0", spoof("10.77.9.9", NODE, 10040, f"{round_} as nobody to a door")),
        ("b0", spoof("8.8.8.8", OUTSIDE, 80, f"{round_} as a stranger to the world")),
        ("b0", spoof("10.77.0.3", "10.77.0.2", 8080, f"{round_} as a mate to another slice")),
        ("b0", spoof("8.8.8.8", NODE, 2222, f"{round_} as a stranger to the node")),
        ("outside", spoof("10.77.0.3", NODE, 10040, f"{round_} as a sliver from outside")),
    ]


def test_nobody_speaks_for_another(net: Net) -> None:
    net.try_all(*lies("closed"))
    honest = [("a0", udp(OUTSIDE, 80, text="honest a0")), ("outside", udp(NODE, 10040, text="honest outside"))]
    mates = [("a0", udp("10.77.0.3", 8080)), ("a1", udp("10.77.0.2", 8080))]
    assert None not in net.try_all(*honest, *mates, ("outside", udp(NODE, 2222)))
    for peer in ("outside", "a0", "a1", "b0", "node"):
        assert not {text for text in heard(net, peer) if text.startswith("closed")}
    assert "honest a0" in heard(net, "outside") and "honest outside" in heard(net, "b0")


def link_local(net: Net, link: str) -> str:
    words = net.node.shell(f"ip -6 -o address show dev {link} scope link").split()
    return f"{words[words.index('inet6') + 1].split('/')[0]}%eth0"


def test_ipv6_of_slivers_is_closed_and_that_of_others_is_not(net: Net) -> None:
    calls = [(name, tcp(link_local(net, names.link(SLIVERS[name][0])), 2222, NO)) for name in SLIVERS]
    assert net.try_all(*calls, ("foreign", tcp(link_local(net, "smc0"), 2222)))[:-1] == [None] * 3
    assert net.try_all(("foreign", tcp(link_local(net, "smc0"), 2222)))[0] is not None


def test_links_that_only_look_like_ours_are_left_alone(net: Net) -> None:
    assert net.try_all(
        ("foreign", tcp("198.51.100.1", 2222)),
        ("foreign", tcp(OUTSIDE, 80)),
        ("foreign", tcp(NODE, 10000)),
        ("foreign", spoof("9.9.9.9", OUTSIDE, 80, "the host routes this")),
        ("foreign", udp(OUTSIDE, 80, text="after it")),
    )[:3] == ["node 198.51.100.2 2222", "outside 198.51.100.2 80", "a0 198.51.100.2 22"]
    eventually(lambda: "the host routes this" in heard(net, "outside"), "the host routes it")


OTHERS = (
    "-N OTHERS",
    "-A OTHERS -s 9.9.9.9/32 -j DROP",
    "-A FORWARD -o docker0 -j DROP",
    "-A FORWARD -j OTHERS",
    "-t nat -A POSTROUTING -s 9.9.9.9/32 -j MASQUERADE",
)
OTHERS_SAVED = [":FORWARD DROP", ":OTHERS -", *(rule.removeprefix("-t nat ") for rule in OTHERS[1:])]


def test_rules_of_others_survive_and_still_hold(net: Net) -> None:
    try:
        net.iptables("-P FORWARD DROP", *OTHERS)
        net.publish(full=True)
        # The rules of slicemgr come before a foreign rule that drops all packets, and do not affect traffic of others.
        assert net.try_all(
            ("outside", tcp(NODE, 10000)),
            ("a0", tcp("10.77.0.3", 22)),
            ("a0", tcp(OUTSIDE, 80)),
            ("b0", tcp("172.17.0.2", 80, NO)),
        ) == [f"a0 {OUTSIDE} 22", "a1 10.77.0.2 22", f"outside {NODE} 80", None]
        assert [line for line in OTHERS_SAVED if line not in net.save()] == []
        net.node.firewall("remove", net.setting)
        assert "SLICEMGR" not in net.save()
        assert [line for line in OTHERS_SAVED if line not in net.save()] == []
    finally:
        net.iptables("-P FORWARD ACCEPT", "-F", "-X OTHERS", "-t nat -F")


@pytest.mark.parametrize(
    "damage",
    [
        ["-F", "-t nat -F"],
        ["-F SLICEMGR-TO"],
        ["-D INPUT -j SLICEMGR-INPUT"],
        ["-A FORWARD -j SLICEMGR-FORWARD"],
        ["-I FORWARD -j ACCEPT"],
        ["-t nat -F", "-t nat -X"],
        ["-N SLICEMGR-OLD", "-A SLICEMGR-OLD -j SLICEMGR-TO", "-A SLICEMGR-INPUT -j SLICEMGR-OLD"],
    ],
)
def test_damage_is_seen_and_healed(net: Net, damage: list[str]) -> None:
    whole = without_counts(net.save())
    assert net.problems() == []
    net.iptables(*damage)
    assert net.problems() != []
    net.publish(full=True)
    assert net.problems() == []
    net.iptables("-D FORWARD -j ACCEPT 2> /dev/null || true")
    assert without_counts(net.save()) == whole


def test_a_change_finds_its_chains_gone_and_does_all_anew(net: Net) -> None:
    net.iptables("-t nat -F", "-t nat -X")
    net.publish([A0, A1])
    net.publish([A0, A1, B0])
    net.publish(full=True)
    assert net.problems() == []


def test_chains_of_an_earlier_version_are_replaced(net: Net) -> None:
    """There, each protocol had a tree of its own."""
    whole = without_counts(net.save())
    older = [f"-N SLICEMGR-{protocol}" for protocol in ("TCP", "UDP")] + ["-F SLICEMGR-DNAT", "-F SLICEMGR-PORTS"]
    older += ["-X SLICEMGR-PORTS", "-A SLICEMGR-DNAT -p tcp -g SLICEMGR-TCP", "-A SLICEMGR-DNAT -p udp -g SLICEMGR-UDP"]
    for protocol in ("tcp", "udp"):
        match = f"-A SLICEMGR-{protocol.upper()} -p {protocol} -m {protocol} --dport"
        older += [f"{match} 10020 -j DNAT --to-destination {A1[2]}:22", f"{match} 10021:10039 -j DNAT --to {A1[2]}"]
    calls = [("outside", kind(NODE, port)) for kind in (tcp, udp) for port in (10020, 10039)]
    net.iptables(*(f"-t nat {line}" for line in older))
    assert None not in (before := net.try_all(*calls))
    assert net.problems() != []
    net.publish(full=True)
    assert net.try_all(*calls) == before
    assert net.problems() == []
    assert without_counts(net.save()) == whole


def without_counts(saved: str) -> list[str]:
    """The lines without counters, independent of the order in which the chains were made."""
    return sorted(line.split(" [")[0] for line in saved.splitlines())


def test_many_small_changes_end_where_one_big_one_would(net: Net) -> None:
    dice = random.Random(7)
    tags = ["".join(dice.choice("abc") for _ in range(names.TAG_LENGTH)) for _ in range(90)]
    crowd = [
        [f"{tag}-{index}", tag, f"10.77.1.{2 * number + index}", [11000 + 50 * number + 20 * index, 20], 2]
        for number, tag in enumerate(tags)
        for index in (0, 1)
    ]
    for _ in range(8):
        net.publish([*ALL, *dice.sample(crowd, dice.randint(0, len(crowd)))])
        assert net.problems() == []
    last = [*ALL, *dice.sample(crowd, 100)]
    net.publish(last)
    by_steps = without_counts(net.save())
    net.node.firewall("remove", net.setting)
    net.publish(last, full=True)
    assert without_counts(net.save()) == by_steps
    assert net.try_all(("outside", tcp(NODE, 10040)), ("b0", tcp("10.77.0.2", 8080, NO))) == [f"b0 {OUTSIDE} 22", None]


def test_creates_at_once_share_writes_and_the_newest_rows_win(net: Net) -> None:
    crowd = [[f"{TAG_B}-{one}", TAG_B, f"10.77.3.{one}", [13000 + 20 * one, 20], 40] for one in range(1, 41)]
    net.publish([])
    reads = net.node.ask({"task": "storm", "setting": net.setting, "slivers": crowd})[0]
    assert 1 <= reads < len(crowd)
    assert net.problems() == []
    after_storm = without_counts(net.save())
    net.publish(crowd, full=True)
    assert without_counts(net.save()) == after_storm


@pytest.mark.parametrize("ends", [True, False])
def test_a_recycled_address_inherits_nothing(net: Net, ends: bool) -> None:
    """An old flow to the port of the predecessor; the control does not delete its entry in the kernel."""
    local, text = (4001, "ended") if ends else (4002, "remembered")
    successor = ["zzzzzzzz-0", "zzzzzzzz", B0[2], [12000, 1], 1]
    assert net.try_all(("outside", udp(NODE, 10040, local=local, text="old"))) == [f"b0 {OUTSIDE} 22"]
    net.node.ask({"task": "forget" if ends else "remember"})
    try:
        net.publish([A0, A1])
        net.publish([A0, A1, successor])
        answer = net.try_all(("outside", udp(NODE, 10040, NO if ends else YES, local=local, text=text)))
    finally:
        net.node.ask({"task": "forget"})
    assert answer == [None if ends else f"b0 {OUTSIDE} 22"]
    assert (text in heard(net, "b0")) is not ends
    assert net.try_all(("outside", udp(NODE, 12000))) == [f"b0 {OUTSIDE} 22"]


def test_removal_leaves_nothing_and_then_nothing_is_closed(net: Net) -> None:
    """Also the control of every check above: forbidden traffic is answered after the rules are removed."""
    assert "SLICEMGR" in net.save()
    net.node.firewall("remove", net.setting)
    assert "SLICEMGR" not in net.save()
    assert net.problems() == ["the rules have not been written yet"]
    net.node.firewall("remove", net.setting)
    reachable = [(peer, {**task, "wait": YES}) for peer, task in FORBIDDEN]
    assert None not in net.try_all(*reachable)
    assert net.try_all(("outside", tcp(NODE, 10000, NO))) == [None]
    net.try_all(*lies("open"))
    for peer, some in (
        ("outside", {"as another sliver to the world", "as a stranger to the world"}),
        ("a1", {"as another sliver to a mate"}),
        ("a0", {"as a mate to another slice"}),
        ("node", {"as a stranger to the node"}),
    ):
        wanted = {f"open {what}" for what in some}
        deadline = time.monotonic() + YES
        while not wanted <= heard(net, peer) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert wanted <= heard(net, peer)
    calls = [(name, tcp(link_local(net, names.link(SLIVERS[name][0])), 2222)) for name in SLIVERS]
    assert None not in net.try_all(*calls)


def test_a_thousand_slivers_are_taken_by_the_kernel(net: Net) -> None:
    dice = random.Random(3)
    crowd = []
    for number in range(1000):
        tag = "".join(dice.choice(names.ALPHABET) for _ in range(names.TAG_LENGTH))
        crowd.append([f"{tag}-0", tag, f"10.77.{4 + number // 250}.{number % 250}", [11000 + 20 * number, 20], 1])
    net.publish([*ALL, *crowd])
    assert net.problems() == []
    assert net.try_all(
        ("outside", tcp(NODE, 10040)), ("a0", tcp("10.77.0.3", 22)), ("b0", tcp("10.77.0.2", 22, NO))
    ) == [f"b0 {OUTSIDE} 22", "a1 10.77.0.2 22", None]


@pytest.fixture
def bare() -> Iterator[Peer]:
    """A node with no neighbours."""
    peer = Peer("bare")
    try:
        yield peer.ready()
    finally:
        peer.end()


def test_the_place_is_chosen_by_who_else_is_there_and_left_clean(bare: Peer) -> None:
    def places() -> tuple[bool, bool]:
        return "SLICEMGR" in bare.shell("iptables-legacy-save"), "SLICEMGR" in bare.shell("iptables-nft-save")

    def publish() -> str:
        assert bare.firewall("replace", "auto", slivers=ALL, full=True) is None
        assert bare.firewall("check", "auto") == []
        return str(bare.firewall("backend", "auto"))

    assert "nf_tables" in bare.shell("iptables --version"), "this test is for a host whose iptables is the nft one"
    assert (publish(), places()) == ("legacy", (True, False))
    bare.shell("iptables -N DOCKER")
    assert (publish(), places()) == ("restore", (False, True))
    assert "table filter" in bare.firewall("reason", "auto")
    bare.shell("iptables -X DOCKER")
    assert (publish(), places()) == ("legacy", (True, False))
    bare.shell("nft add table inet firewalld")
    assert (publish(), places()) == ("restore", (False, True))
    assert "inet firewalld" in bare.firewall("reason", "auto")
    assert bare.firewall("remove", "auto") is None
    assert places() == (False, False)


def test_a_library_that_does_not_work_is_found_by_trying(tmp_path: Path) -> None:
    network, weakened = NetworkConfig(untracked=(22,)), tmp_path / "weakened.py"
    weakened.write_text(WEAKENED)
    assert firewall_trial.fault(network) == ""
    wrong = firewall_trial.try_by([sys.executable, str(weakened)], network)
    assert "iptables-legacy-restore" in wrong and wrong.endswith("-m rpfilter -j DROP")  # --invert is missing
    assert firewall_trial.try_by(["sh", "-c", "kill -SEGV $$"], network) == "it was ended by signal 11"
    assert firewall_trial.try_by(["true"], network) == "it returned no result"
    assert firewall_trial.try_by(["no-such-program"], network)


def test_without_a_library_that_works_the_program_writes_and_tidies_up(bare: Peer) -> None:
    bare.firewall("replace", "auto", slivers=ALL, full=True)
    assert bare.firewall("backend", "auto") == "legacy"
    bare.ask({"task": "doubt", "fault": "no such parameter"})
    try:
        assert bare.firewall("replace", "auto", slivers=ALL, full=True) is None
        assert bare.firewall("backend", "auto") == "restore"
        assert "no such parameter" in bare.firewall("reason", "auto")
        assert bare.firewall("check", "auto") == []
        assert "SLICEMGR" not in bare.shell("iptables-legacy-save; ip6tables-legacy-save")
        assert "SLICEMGR" in bare.shell("iptables-save")
        assert "no such parameter" in bare.firewall("replace", "legacy", slivers=ALL, full=True)
        assert bare.firewall("remove", "auto") is None
        assert "SLICEMGR" not in bare.shell("iptables-save; iptables-legacy-save")
    finally:
        bare.ask({"task": "doubt", "fault": ""})


def test_others_who_change_tables_are_waited_for(bare: Peer, tmp_path: Path) -> None:
    lock = tmp_path / "xtables.lock"
    bare.ask({"task": "lock", "path": str(lock), "timeout": 0.2})
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert f"another program has held {lock}" in bare.firewall("replace", "legacy", slivers=ALL)
        bare.ask({"task": "lock", "path": str(lock), "timeout": 60})
        bare.tell({"task": "firewall", "do": "replace", "setting": "legacy", "slivers": ALL})
        assert "SLICEMGR" not in bare.shell("iptables-legacy-save")
        fcntl.flock(file, fcntl.LOCK_UN)
        assert bare.heed() == [None]
    assert bare.firewall("check", "legacy") == []
    bare.firewall("remove", "legacy")

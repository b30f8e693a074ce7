"""The packet filter as data, tested by a small evaluator: the fate of a packet, and the number of rules it passes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicemgr import names
from slicemgr.config import NetworkConfig
from slicemgr.drivers.network import firewall_rules
from slicemgr.drivers.network.firewall import Choice, Facts, choose
from slicemgr.drivers.network.firewall_restore import parse_saved
from slicemgr.drivers.network.firewall_rules import PARTS, PRIVATE_BRIDGES, Published, tables
from slicemgr.drivers.network.firewall_table import (
    Match,
    Rule,
    Table,
    changes,
    restore_text,
    rule_words,
    wrong_counts,
)
from slicemgr.drivers.network.firewall_trial import examples
from slicemgr.errors import Refused
from slicemgr.model import PortBlock

NETWORK = NetworkConfig()
POOL = IPv4Network(NETWORK.addresses)
NODE = "192.0.2.1"
OUTSIDE = "198.51.100.7"
Ruleset = Mapping[str, Table]


@dataclass(frozen=True)
class Packet:
    """The first packet of a connection. in_link "" means: the node itself sends it."""

    source: str
    destination: str
    port: int = 0
    protocol: str = "tcp"
    in_link: str = "eth0"
    out_link: str = ""
    state: str = "NEW"
    dnat: bool = False
    to_node: bool = False
    way_back: bool = True
    icmp: str = "echo-request"
    ipv6: bool = False
    too_many: bool = False


@dataclass(frozen=True)
class Outcome:
    """where: a sliver's ID, `node`, `world` or `dropped`. settled: by a rule of slicemgr, not of the host."""

    where: str
    settled: bool
    crossed: int
    port: int = 0
    masqueraded: bool = False


def ruleset(published: Sequence[Published], network: NetworkConfig = NETWORK) -> Ruleset:
    return {table.title: table for table in tables(published, network)}


def _is(wanted: str, got: bool) -> bool:
    return got is not wanted.startswith("!")


def _match(match: Match, packet: Packet) -> bool:
    options = dict(match.options)
    match match.module:
        case "conntrack":
            assert options.get("ctstatus") in (None, "!CONFIRMED")  # of a first packet, which all here are
            if "ctorigdstport" in options:  # the port of that packet, before any translation
                first, _, last = options["ctorigdstport"].partition(":")
                return int(first) <= packet.port <= int(last or first)
            return bool({packet.state, "DNAT" if packet.dnat else ""} & set(options["ctstate"].split(",")))
        case "hashlimit" | "connlimit":
            return packet.too_many
        case "statistic":
            return False  # the last part is as good as any
        case "addrtype":
            return packet.to_node if "dst-type" in options else not packet.in_link
        case "rpfilter":
            return not packet.way_back
        case "icmp":
            return packet.icmp == options["icmp-type"]
        case "tcp" | "udp":
            if "dport" not in options:
                return False
            first, _, last = options["dport"].partition(":")
            return packet.protocol == match.module and int(first) <= packet.port <= int(last or first)
        case _:
            raise AssertionError(f"the evaluator does not know {match}")


def _matches(rule: Rule, packet: Packet) -> bool:
    for wanted, address in ((rule.source, packet.source), (rule.destination, packet.destination)):
        if wanted and not _is(wanted, IPv4Address(address) in IPv4Network(wanted.lstrip("!"))):
            return False
    for wanted, link in ((rule.in_link, packet.in_link), (rule.out_link, packet.out_link)):
        if wanted and not (link.startswith(wanted[:-1]) if wanted.endswith("+") else link == wanted):
            return False
    if rule.protocol and rule.protocol != packet.protocol:
        return False
    return all(_match(one, packet) for one in rule.matches)


def walk(table: Table, hook: str, packet: Packet) -> tuple[Rule | None, int]:
    """The rule that decides on the packet (None: the host's own rules do), and the number of rules tested."""
    crossed = 0
    start = [chain for builtin, chain in table.jumps if builtin == hook]
    stack = [(start[0], 0)] if start else []
    while stack:
        name, position = stack.pop()
        chain = table.chains[name]
        if position == len(chain):
            continue
        crossed += 1
        rule = chain[position]
        if not _matches(rule, packet):
            stack.append((name, position + 1))
        elif rule.target in table.chains:
            if not rule.goto:
                stack.append((name, position + 1))
            stack.append((rule.target, 0))
        elif rule.target != "RETURN":
            return rule, crossed
    return None, crossed


def travel(rules: Ruleset, slivers: Sequence[Published], packet: Packet) -> Outcome:
    """Send the packet through the node as the kernel would."""
    owner = {one.address: one for one in slivers}
    total = 0
    if packet.in_link:
        if packet.source in owner:
            packet = dataclasses.replace(packet, way_back=packet.in_link == names.link(owner[packet.source].sliver))
        rule, crossed = walk(rules["IPv4 raw table"], "PREROUTING", packet)
        total += crossed
        if rule is not None:
            return Outcome("dropped", True, total)
    local = packet.destination in (NODE, NETWORK.gateway) or packet.destination.startswith("127.")
    packet = dataclasses.replace(packet, to_node=local)
    rule, crossed = walk(rules["IPv4 nat table"], "PREROUTING" if packet.in_link else "OUTPUT", packet)
    total += crossed
    if rule is not None:
        address, _, port = dict(rule.options)["to-destination"].partition(":")
        local = False
        packet = dataclasses.replace(packet, destination=address, port=int(port or packet.port), dnat=True)
    to = owner.get(packet.destination)
    if not local:
        packet = dataclasses.replace(packet, out_link=packet.out_link or (names.link(to.sliver) if to else "eth0"))
    if packet.in_link:
        rule, crossed = walk(rules["IPv4 mangle table"], "INPUT" if local else "FORWARD", packet)
        total += crossed
        if rule is not None:
            return Outcome("dropped", True, total)
    if local:
        rule, crossed = walk(rules["IPv4 filter table"], "INPUT", packet)
        verdict = rule.target if rule else ""
        return Outcome("dropped" if verdict == "DROP" else "node", bool(verdict), total + crossed, packet.port)
    verdict = "ACCEPT"
    if packet.in_link:
        rule, crossed = walk(rules["IPv4 filter table"], "FORWARD", packet)
        total, verdict = total + crossed, rule.target if rule else ""
    if verdict == "DROP":
        return Outcome("dropped", True, total)
    rule, crossed = walk(rules["IPv4 nat table"], "POSTROUTING", packet)
    return Outcome(to.sliver if to else "world", bool(verdict), total + crossed, packet.port, rule is not None)


def crossed(rules: Ruleset, slivers: Sequence[Published], packet: Packet) -> int:
    """How many rules a new connection crosses on its way through the node."""
    return travel(rules, slivers, packet).crossed


def sends(sliver: Published, destination: str, port: int = 80, **more: object) -> Packet:
    packet = Packet(sliver.address, destination, port, in_link=names.link(sliver.sliver))
    return dataclasses.replace(packet, **more)  # type: ignore[arg-type]


def slices(sizes: Sequence[int], ports: Sequence[int] = (20,), seed: int = 1) -> list[Published]:
    """One slice of each size; addresses and port blocks follow one another."""
    dice, out, first = random.Random(seed), list[Published](), NETWORK.ports_first
    for size in sizes:
        tag = "".join(dice.choice(names.ALPHABET) for _ in range(names.TAG_LENGTH))
        for index in range(size):
            block = PortBlock(first, ports[len(out) % len(ports)])
            first = block.last + 1
            out.append(Published(names.sliver_id(tag, index), tag, str(POOL[len(out) + 2]), block, size))
    return out


populations = st.builds(
    slices,
    st.lists(st.integers(1, 5), min_size=1, max_size=60),
    st.lists(st.integers(1, 120), min_size=1, max_size=7),
    st.integers(0, 1 << 30),
)
quickly = settings(max_examples=60, deadline=None)


@quickly
@given(populations, st.data())
def test_every_port_of_a_block_leads_to_its_sliver(slivers: list[Published], data: st.DataObject) -> None:
    rules = ruleset(slivers)
    one = data.draw(st.sampled_from(slivers))
    port = data.draw(st.integers(one.ports.first, one.ports.last))
    for protocol in ("tcp", "udp"):
        for link, source in (("eth0", OUTSIDE), ("", NODE), ("smc0", OUTSIDE)):
            got = travel(rules, slivers, Packet(source, NODE, port, protocol, link))
            assert (got.where, got.port) == (one.sliver, 22 if port == one.ports.first else port)
            assert got.settled and not got.masqueraded
    assert travel(rules, slivers, Packet("127.0.0.1", "127.0.0.1", port, in_link="")).where == "node"


@quickly
@given(populations, st.data())
def test_a_port_in_no_block_stays_the_hosts(slivers: list[Published], data: st.DataObject) -> None:
    port = data.draw(st.one_of(st.integers(1, NETWORK.ports_first - 1), st.integers(slivers[-1].ports.last + 1, 65535)))
    got = travel(ruleset(slivers), slivers, Packet(OUTSIDE, NODE, port))
    assert (got.where, got.settled) == ("node", False)


@quickly
@given(populations, st.data())
def test_private_addresses_are_for_the_own_slice_only(slivers: list[Published], data: st.DataObject) -> None:
    rules = ruleset(slivers)
    one, other = data.draw(st.sampled_from(slivers)), data.draw(st.sampled_from(slivers))
    got = travel(rules, slivers, sends(one, other.address, 22))
    if one.tag == other.tag and one.siblings > 1:
        assert (got.where, got.masqueraded) == (other.sliver, False)
    else:
        assert got.where == "dropped"
    assert travel(rules, slivers, Packet(OUTSIDE, other.address, 22)).where == "dropped"


@quickly
@given(populations, st.data())
def test_public_ports_are_for_every_sliver_even_for_itself(slivers: list[Published], data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(slivers)), data.draw(st.sampled_from(slivers))
    got = travel(ruleset(slivers), slivers, sends(one, NODE, other.ports.last))
    assert (got.where, got.settled, got.masqueraded) == (other.sliver, True, True)


@quickly
@given(populations, st.data())
def test_nobody_speaks_for_another(slivers: list[Published], data: st.DataObject) -> None:
    rules = ruleset(slivers)
    one, other = data.draw(st.sampled_from(slivers)), data.draw(st.sampled_from(slivers))
    for source in (other.address, OUTSIDE, "0.0.0.0", NODE):
        got = travel(rules, slivers, sends(one, OUTSIDE, source=source))
        assert (got.where == "world") is (source == one.address), source
    assert travel(rules, slivers, Packet(one.address, NODE, other.ports.first)).where == "dropped"  # from the LAN


@quickly
@given(populations, st.data())
def test_all_ipv6_of_slivers_and_nothing_else_is_dropped(slivers: list[Published], data: st.DataObject) -> None:
    table = ruleset(slivers)["IPv6 filter table"]
    link = names.link(data.draw(st.sampled_from(slivers)).sliver)
    for hook, packet in (
        ("INPUT", Packet("", "", in_link=link)),
        ("FORWARD", Packet("", "", in_link=link, out_link="eth0")),
        ("FORWARD", Packet("", "", in_link="eth0", out_link=link)),
        ("FORWARD", Packet("", "", in_link="smc0", out_link=link)),
    ):
        rule, _ = walk(table, hook, packet)
        assert rule is not None and rule.target == "DROP"
        for foreign in ("eth1", "smc0", "sm", f"sm{'a' * 12}"):
            swapped = dataclasses.replace(
                packet,
                in_link=packet.in_link and packet.in_link.replace(link, foreign),
                out_link=packet.out_link and packet.out_link.replace(link, foreign),
            )
            assert walk(table, hook, swapped)[0] is None


@quickly
@given(populations)
def test_interfaces_that_only_look_like_ours_are_left_alone(slivers: list[Published]) -> None:
    rules = ruleset(slivers)
    for foreign in ("smc0", "sm0", "smaaaaaaaaa"):
        for packet in (
            Packet("203.0.113.5", NODE, 22, in_link=foreign),
            Packet("203.0.113.5", OUTSIDE, 80, in_link=foreign),
            Packet("0.0.0.0", "255.255.255.255", 67, "udp", in_link=foreign),
            Packet(OUTSIDE, "203.0.113.5", 80, out_link=foreign),
        ):
            got = travel(rules, slivers, packet)
            assert got.where in ("world", "node") and not got.settled and not got.masqueraded


def test_the_hosts_services_are_closed_and_only_the_gateway_answers_a_ping() -> None:
    slivers = slices([1, 2])
    rules, one = ruleset(slivers), slivers[0]
    for address in (NODE, NETWORK.gateway):
        for protocol in ("tcp", "udp"):
            assert travel(rules, slivers, sends(one, address, 22, protocol=protocol)).where == "dropped"
    assert travel(rules, slivers, sends(one, NETWORK.gateway, protocol="icmp")).where == "node"
    assert travel(rules, slivers, sends(one, NETWORK.gateway, protocol="icmp", icmp="timestamp-request")).where == (
        "dropped"
    )
    assert travel(rules, slivers, sends(one, NODE, protocol="icmp")).where == "dropped"
    assert travel(rules, slivers, sends(one, NODE, 40000, state="ESTABLISHED")).where == "node"


def test_the_world_is_open_but_for_what_is_denied_or_has_its_own_rules() -> None:
    slivers = slices([1])
    rules, one = ruleset(slivers, NetworkConfig(denied=("169.254.0.0/16", "203.0.113.0/24"))), slivers[0]
    world = travel(rules, slivers, sends(one, OUTSIDE))
    assert (world.where, world.settled, world.masqueraded) == ("world", True, True)
    for denied in ("169.254.169.254", "203.0.113.9"):
        assert travel(rules, slivers, sends(one, denied)).where == "dropped"
    for bridge in PRIVATE_BRIDGES:
        got = travel(rules, slivers, sends(one, "172.17.0.2", out_link=bridge.replace("+", "0")))
        assert not got.settled
    assert travel(rules, slivers, sends(one, str(POOL[60000]))).where == "dropped"  # unused; must not leave the node
    assert travel(rules, slivers, Packet(OUTSIDE, str(POOL[60000]))).where == "dropped"
    assert travel(rules, slivers, sends(one, OUTSIDE, state="INVALID")).where == "dropped"


@quickly
@given(populations, st.data())
def test_too_many_connections_are_dropped_for_one_sliver_alone(slivers: list[Published], data: st.DataObject) -> None:
    """tests/system/test_connections.py tests the kernel's counts; this tests to which sliver they apply."""
    rules, one = ruleset(slivers), data.draw(st.sampled_from(slivers))
    for packet in (
        sends(one, OUTSIDE),
        sends(one, OUTSIDE, protocol="icmp"),
        sends(one, OUTSIDE, out_link="docker0"),
        sends(one, NODE, one.ports.first),
        sends(one, NETWORK.gateway, protocol="icmp"),
        Packet(OUTSIDE, NODE, one.ports.last),
        Packet(OUTSIDE, NODE, one.ports.last, in_link="docker0"),
    ):
        assert travel(rules, slivers, packet).where != "dropped"
        assert travel(rules, slivers, dataclasses.replace(packet, too_many=True)).where == "dropped"
    for packet in (
        sends(one, OUTSIDE, state="ESTABLISHED"),
        Packet(OUTSIDE, NODE, 443),
        Packet(OUTSIDE, "203.0.113.5", out_link="docker0"),
        Packet(NODE, one.address, 22, in_link=""),
    ):
        assert travel(rules, slivers, dataclasses.replace(packet, too_many=True)) == travel(rules, slivers, packet)


def test_what_one_sliver_opens_to_another_is_counted_once_and_by_its_opener() -> None:
    mangle = ruleset(slices([1, 1]))["IPv4 mangle table"]
    (from_one,) = mangle.chains["SLICEMGR-INPUT"]
    assert mangle.chains["SLICEMGR-FORWARD"][0] == from_one and from_one.goto
    by_address = {"SLICEMGR-OPENS": ("srcip", "connlimit-saddr"), "SLICEMGR-OPENED": ("dstip", "connlimit-daddr")}
    for name, (rate, count) in by_address.items():
        chain = mangle.chains[name]
        words = " ".join(rule_words(chain[0]))
        assert f"--hashlimit-above 200/sec --hashlimit-burst 4096 --hashlimit-mode {rate} " in words
        parts = [rule.target for rule in chain[1:]]
        assert len(set(parts)) == PARTS and all(rule.goto for rule in chain[1:]) and not chain[-1].matches
        for part in parts:
            (rule,) = mangle.chains[part]
            assert f"--connlimit-above {4096 // PARTS} --connlimit-mask 32 --{count} -j DROP" in " ".join(
                rule_words(rule)
            )


def test_every_part_of_the_connections_has_the_same_chance() -> None:
    left = 1.0
    for rule in ruleset([])["IPv4 mangle table"].chains["SLICEMGR-OPENS"][1:]:
        chance = float(dict(rule.matches[0].options)["probability"]) if rule.matches else 1.0
        assert left * chance == pytest.approx(1 / PARTS, rel=1e-4)
        left *= 1 - chance


def test_the_limits_of_connections_are_the_same_whoever_is_published() -> None:
    """The counters of a table that is rewritten start at zero."""
    assert ruleset([])["IPv4 mangle table"] == ruleset(slices([3, 2, 1] * 100))["IPv4 mangle table"]


def test_ports_that_are_not_tracked_are_the_nodes_own_alone() -> None:
    slivers = slices([1])
    raw = ruleset(slivers, NetworkConfig(untracked=(22, 8480)))["IPv4 raw table"]
    for port, target in ((22, "CT"), (8480, "CT"), (80, None), (10000, None)):
        asked, elsewhere = Packet(OUTSIDE, NODE, port, to_node=True), Packet(OUTSIDE, "203.0.113.5", port)
        rule, _ = walk(raw, "PREROUTING", asked)
        assert (rule.target if rule else None) == target
        assert walk(raw, "PREROUTING", elsewhere)[0] is None
    assert all("OUTPUT" not in builtin for builtin, _ in ruleset(slivers)["IPv4 raw table"].jumps)


def test_the_evaluator_lets_through_what_weakened_rules_let_through() -> None:
    """The control: without the rules nothing is blocked, so the checks above depend on them."""
    slivers = slices([1, 1])
    one, other = slivers
    rules = ruleset(slivers)
    open_rules = {title: dataclasses.replace(table, jumps=()) for title, table in rules.items()}
    assert travel(open_rules, slivers, sends(one, other.address)).where == other.sliver
    assert travel(open_rules, slivers, sends(one, NODE, 22)).where == "node"
    assert travel(open_rules, slivers, sends(one, OUTSIDE, source=other.address)).where == "world"
    assert travel(open_rules, slivers, Packet(OUTSIDE, other.address)).where == other.sliver
    assert walk(open_rules["IPv6 filter table"], "INPUT", Packet("", "", in_link=names.link(one.sliver)))[0] is None
    filter_table = rules["IPv4 filter table"]
    mates = dict(filter_table.chains) | {"SLICEMGR-PEER": (Rule("ACCEPT"),)}
    weak = {**rules, filter_table.title: dataclasses.replace(filter_table, chains=mates)}
    assert travel(weak, slivers, sends(one, other.address)).where == other.sliver


@pytest.mark.parametrize(("count", "ports"), [(1000, 20), (1000, 1), (300, 60)])
@pytest.mark.parametrize("size", [1, 2])
def test_a_new_connection_crosses_a_bounded_number_of_rules(count: int, ports: int, size: int) -> None:
    def worst(total: int) -> int:
        slivers = slices([size] * (total // size), [ports])
        rules = ruleset(slivers)
        packets = [Packet(OUTSIDE, NODE, one.ports.last) for one in slivers]
        packets += [sends(one, NODE, slivers[-1].ports.first, protocol="udp") for one in slivers]
        packets += [sends(one, slivers[0].address) for one in slivers]
        packets += [sends(one, OUTSIDE, source=NODE) for one in slivers]
        return max(crossed(rules, slivers, packet) for packet in packets)

    few, many = worst(10), worst(count)
    assert many <= 110
    assert many <= 5 * few  # where there are up to a hundred times as many slivers


@pytest.mark.parametrize("position", [0, 137, 999])
def test_one_more_sliver_changes_few_chains(position: int) -> None:
    slivers = slices([1] * 1000)
    fewer = slivers[:position] + slivers[position + 1 :]
    for new, old in zip(tables(slivers, NETWORK), tables(fewer, NETWORK), strict=True):
        written, stale = changes(new, old)
        assert len(written) + len(stale) <= 12
        assert sum(len(new.chains[name]) for name in written) <= 100


def test_one_more_slice_among_a_thousand_computes_few_subtrees_again() -> None:
    """Also after other changes: the cache keeps every subtree that is in use."""
    published = slices([1] * 1010)
    for count in range(1000, 1010):
        before = firewall_rules._by_tag.cache_info().misses
        tables(published[:count], NETWORK)
    assert firewall_rules._by_tag.cache_info().misses - before < 20


@quickly
@given(populations)
def test_names_fit_and_every_chain_is_ours_and_reached(slivers: list[Published]) -> None:
    for table in tables(slivers, NETWORK):
        reached = {chain for _, chain in table.jumps}
        for chain in table.chains.values():
            reached |= {rule.target for rule in chain if rule.target.startswith(names.CHAIN_PREFIX)}
            assert all(len(link) <= 15 for rule in chain for link in (rule.in_link, rule.out_link))
        assert reached == table.chains.keys()
        assert all(len(name) <= 28 for name in table.chains)


def test_rules_do_not_depend_on_the_order_in_which_slivers_are_named() -> None:
    slivers = slices([1, 3] * 20)
    assert tables(slivers, NETWORK) == tables(slivers[::-1], NETWORK)


def test_restore_text_of_the_doors_of_one_sliver() -> None:
    one = Published("abcdefgh-0", "abcdefgh", "10.77.0.2", PortBlock(10000, 20))
    nat = ruleset([one])["IPv4 nat table"]
    text = restore_text(nat, nat.chains, ["SLICEMGR-OLD"], {("OUTPUT", "SLICEMGR-OUTPUT"): 2})
    assert text.splitlines() == [
        "*nat",
        ":SLICEMGR-DNAT - [0:0]",
        ":SLICEMGR-OUTPUT - [0:0]",
        ":SLICEMGR-PORTS - [0:0]",
        ":SLICEMGR-POSTROUTING - [0:0]",
        ":SLICEMGR-PREROUTING - [0:0]",
        ":SLICEMGR-OLD - [0:0]",
        "-D OUTPUT -j SLICEMGR-OUTPUT",
        "-D OUTPUT -j SLICEMGR-OUTPUT",
        "-I PREROUTING -j SLICEMGR-PREROUTING",
        "-I OUTPUT -j SLICEMGR-OUTPUT",
        "-I POSTROUTING -j SLICEMGR-POSTROUTING",
        "-A SLICEMGR-DNAT -p tcp -g SLICEMGR-PORTS",
        "-A SLICEMGR-DNAT -p udp -g SLICEMGR-PORTS",
        "-A SLICEMGR-OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -g SLICEMGR-DNAT",
        "-A SLICEMGR-PORTS -p tcp -m tcp --dport 10000 -j DNAT --to-destination 10.77.0.2:22",
        "-A SLICEMGR-PORTS -p udp -m udp --dport 10000 -j DNAT --to-destination 10.77.0.2:22",
        "-A SLICEMGR-PORTS -m conntrack --ctorigdstport 10001:10019 -j DNAT --to-destination 10.77.0.2",
        "-A SLICEMGR-POSTROUTING -s 10.77.0.0/16 ! -d 10.77.0.0/16 -j MASQUERADE",
        "-A SLICEMGR-POSTROUTING -s 10.77.0.0/16 -d 10.77.0.0/16 -m conntrack --ctstate DNAT -j MASQUERADE",
        "-A SLICEMGR-PREROUTING -m addrtype --dst-type LOCAL -g SLICEMGR-DNAT",
        "-X SLICEMGR-OLD",
        "COMMIT",
    ]


def test_restore_text_of_a_change_names_only_what_changes() -> None:
    one, mate = slices([2])
    raw, old = ruleset([one, mate])["IPv4 raw table"], ruleset([])["IPv4 raw table"]
    assert restore_text(raw, *changes(raw, old)).splitlines() == [
        "*raw",
        ":SLICEMGR-LINKS - [0:0]",
        f"-A SLICEMGR-LINKS -i sm{one.tag}-+ -j DROP",
        "COMMIT",
    ]


def test_words_of_a_rule() -> None:
    rule = Rule("DROP", source="!10.77.0.0/16", in_link="sm+", matches=(Match("rpfilter", (("invert", ""),)),))
    assert rule_words(rule) == ["!", "-s", "10.77.0.0/16", "-i", "sm+", "-m", "rpfilter", "--invert", "-j", "DROP"]
    rule = Rule("CT", (("notrack", ""),), matches=(Match("conntrack", (("ctstatus", "!CONFIRMED"),)),))
    assert rule_words(rule) == ["-m", "conntrack", "!", "--ctstatus", "CONFIRMED", "-j", "CT", "--notrack"]


def test_wrong_counts_names_what_is_missing_left_over_and_altered() -> None:
    table = ruleset(slices([1]))["IPv4 raw table"]
    there = {name: len(chain) for name, chain in table.chains.items()}
    assert wrong_counts(table, there) == []
    del there["SLICEMGR-PREROUTING"]
    problems = wrong_counts(table, {**there, "SLICEMGR-LINKS": 0, "SLICEMGR-X": 1})
    assert problems == [
        "IPv4 raw table: chain SLICEMGR-PREROUTING is missing",
        "IPv4 raw table: chain SLICEMGR-X is a leftover",
        "IPv4 raw table: chain SLICEMGR-LINKS has 0 rules instead of 1",
    ]


NFT, LEGACY = Facts(True, "nft"), Facts(True, "legacy")


@pytest.mark.parametrize(
    ("setting", "facts", "name"),
    [
        ("auto", NFT, "legacy"),
        ("auto", LEGACY, "legacy"),
        ("auto", Facts(True, ""), "legacy"),
        ("auto", Facts(True, "nft", "table filter"), "restore"),
        ("auto", Facts(False, "nft"), "restore"),
        ("auto", Facts(True, "nft", fault="it was ended by signal 11"), "restore"),
        ("auto", Facts(True, "legacy", fault="no such parameter"), "restore"),
        ("legacy", Facts(True, "nft", "table filter"), "legacy"),
        ("restore", LEGACY, "restore"),
    ],
)
def test_choice_of_the_back_end(setting: str, facts: Facts, name: str) -> None:
    choice = choose(setting, facts)
    assert choice == Choice(name, choice.reason)
    assert choice.reason


@pytest.mark.parametrize(
    ("setting", "facts"),
    [
        ("legacy", Facts(False, "nft")),
        ("legacy", Facts(True, "nft", fault="no such parameter")),
        ("restore", Facts(True, "")),
        ("auto", Facts(False, "")),
        ("auto", Facts(True, "", fault="no such parameter")),
    ],
)
def test_a_host_without_the_means_is_refused_by_the_setting(setting: str, facts: Facts) -> None:
    with pytest.raises(Refused) as refused:
        choose(setting, facts)
    assert refused.value.field == "network.firewall"
    assert refused.value.hint


def test_the_fault_of_the_library_is_the_reason() -> None:
    assert "no such parameter" in choose("auto", Facts(True, "nft", fault="no such parameter")).reason
    with pytest.raises(Refused, match="no such parameter"):
        choose("legacy", Facts(True, "nft", fault="no such parameter"))


def test_the_rules_that_are_tried_have_every_form() -> None:
    there = {one.title: one for one in tables(examples(), NETWORK)}
    single = {one.title: one for one in tables(examples()[:2], NETWORK)}
    split = [name for title, one in there.items() for name in one.chains.keys() - single[title].chains.keys()]
    assert any(name.startswith("SLICEMGR-PORTS-") for name in split) and any("-LINKS-" in name for name in split), split


def test_others_are_told_from_ourselves_in_what_iptables_saves() -> None:
    own = [":INPUT ACCEPT [5:6]", ":SLICEMGR-INPUT - [0:0]", "-A INPUT -j SLICEMGR-INPUT", "-A SLICEMGR-INPUT -j DROP"]
    text = "\n".join(["# by us", "*raw", *own, "COMMIT", "*filter", *own, "-A INPUT -j SLICEMGR-INPUT", "COMMIT"])
    saved = parse_saved(text)
    assert not saved["raw"].foreign and not saved["filter"].foreign
    assert saved["filter"].own == {"SLICEMGR-INPUT": 1}
    assert saved["filter"].jumps == {("INPUT", "SLICEMGR-INPUT"): 2}
    assert saved["raw"].first["INPUT"] == "-j SLICEMGR-INPUT"
    for foreign in (":DOCKER - [0:0]", ":FORWARD DROP [0:0]", "-A INPUT -i lo -j ACCEPT"):
        assert parse_saved("\n".join(["*filter", *own, foreign]))["filter"].foreign

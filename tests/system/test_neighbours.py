"""The kernel's neighbour table against a tenant who sends arbitrary packets over the sliver's link."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from firewall_net import A0, A1, GATEWAY, NO, NODE, OUTSIDE, YES, Net, Task, built, tcp
from testbed import Node, eventually

from slicemgr import names

COUNT = 40  # the table is one for the whole machine: enough to be sure, and no harm
SLIVER, ADDRESS = str(A0[0]), str(A0[2])
LINK, MAC = names.link(SLIVER), names.mac(SLIVER)
FORGED = {
    "of the pool": [f"10.77.9.{number}" for number in range(1, COUNT + 1)],
    "of the node's network": [f"192.0.2.{number}" for number in range(101, 101 + COUNT)],
    "of the world": [f"198.18.0.{number}" for number in range(1, COUNT + 1)],
}
OWN = f"{ADDRESS} lladdr {MAC} PERMANENT"


@pytest.fixture(scope="module")
def topology() -> Iterator[Net]:
    with built("legacy") as net:
        yield net


@pytest.fixture
def net(topology: Net) -> Net:
    """The topology with a link as libvirt makes it."""
    topology.peers["a0"].shell(f"ip link set eth0 address {MAC}; ip neigh flush all")
    system = "/proc/sys/net"
    topology.node.shell(
        f"echo 0 > {system}/ipv4/conf/{LINK}/rp_filter; echo 0 > {system}/ipv6/conf/{LINK}/disable_ipv6\n"
        f"ip neigh flush dev {LINK} nud all; ip -6 neigh flush dev {LINK} nud all\n"
        f"ip route add default via {OUTSIDE} 2> /dev/null || true"
    )
    return topology


def guard(net: Net) -> None:
    assert net.node.ask({"task": "guard", "sliver": SLIVER, "address": ADDRESS}) == [True]


def entries(net: Net, family: str = "-4") -> list[str]:
    """The entries of the link, without those for broadcast and multicast."""
    told = net.node.shell(f"ip {family} neigh show dev {LINK}")
    return sorted(line.strip() for line in told.splitlines())


def forge(senders: list[str], target: str = GATEWAY, **more: object) -> tuple[str, Task]:
    return "a0", {"task": "forge", "senders": senders, "target": target, **more}


@pytest.mark.parametrize("senders", FORGED.values(), ids=FORGED.keys())
def test_forged_requests_make_no_entries(net: Net, senders: list[str]) -> None:
    net.try_all(forge(senders))
    eventually(lambda: len(entries(net)) >= COUNT, "a link as libvirt makes it has got the entries", 10)
    net.node.shell(f"ip neigh flush dev {LINK} nud all")
    guard(net)
    net.try_all(forge(senders), forge(senders, NODE), forge(senders, "10.77.0.3"), forge(senders, operation=2))
    assert net.try_all(("a0", tcp(OUTSIDE, 80))) != [None]
    assert entries(net) == [OWN]


def test_forged_solicitations_of_ipv6_make_no_entries(net: Net) -> None:
    def addresses() -> list[str]:
        """The addresses of the link that answer, without those under duplicate address detection."""
        shown = json.loads(net.node.shell(f"ip -6 -j address show dev {LINK} scope link"))
        return [one["local"] for link in shown for one in link.get("addr_info", []) if not one.get("tentative")]

    eventually(addresses, "the link has its own address", 30)
    solicit: Task = {"task": "solicit", "target": addresses()[0], "count": COUNT}
    net.try_all(("a0", solicit))
    eventually(lambda: len(entries(net, "-6")) >= COUNT, "the control has made its entries", 10)
    net.node.shell(f"ip -6 neigh flush dev {LINK} nud all")
    guard(net)
    net.try_all(("a0", solicit))
    assert net.try_all(("a0", tcp(OUTSIDE, 80))) != [None]
    assert entries(net, "-6") == []


def test_the_gateway_goes_on_answering(net: Net) -> None:
    guard(net)
    asked: Task = {"task": "who_has", "target": GATEWAY, "sender": ADDRESS, "wait": YES}
    told = json.loads(net.node.shell(f"ip -j link show {LINK}"))[0]["address"]
    assert net.try_all(("a0", asked), ("a0", {**asked, "sender": "0.0.0.0"})) == [told, told]
    assert net.try_all(("a0", {**asked, "sender": "10.77.0.3", "wait": NO})) == [None]


def test_nothing_that_is_sent_changes_the_entry(net: Net) -> None:
    other = "52:00:00:00:00:01"
    changed = forge([ADDRESS], operation=1, hardware=other)
    assert net.try_all(("node", tcp(ADDRESS, 22))) == [f"a0 {GATEWAY} 22"]
    net.try_all(changed)
    assert any(other in line for line in entries(net)), "the control"
    guard(net)
    net.try_all(changed, forge([ADDRESS], operation=2, hardware=other), forge([ADDRESS], ADDRESS, hardware=other))
    assert net.try_all(("node", tcp(ADDRESS, 22))) == [f"a0 {GATEWAY} 22"]
    assert entries(net) == [OWN]


def test_a_network_that_is_restarted_inside_goes_on(net: Net) -> None:
    guard(net)
    net.peers["a0"].shell("ip neigh flush all nud all; ip link set eth0 down; ip link set eth0 up")
    net.peers["a0"].shell(f"ip route replace default via {GATEWAY} dev eth0 onlink")
    assert net.try_all(("a0", tcp(OUTSIDE, 80)), ("node", tcp(ADDRESS, 22))) != [None, None]
    assert entries(net) == [OWN] and net.node.ask({"task": "guarded", "sliver": SLIVER}) == [True]


@pytest.mark.parametrize(
    "undo",
    [
        f"ip neigh del {ADDRESS} dev {LINK}",
        f"ip neigh replace {ADDRESS} lladdr {MAC} dev {LINK} nud reachable",
        f"ip neigh replace {ADDRESS} lladdr 52:00:00:00:00:01 dev {LINK} nud permanent",
        f"echo 0 > /proc/sys/net/ipv4/conf/{LINK}/rp_filter",
        f"echo 1 > /proc/sys/net/ipv4/conf/{LINK}/arp_accept",
        f"echo 0 > /proc/sys/net/ipv6/conf/{LINK}/disable_ipv6",
    ],
)
def test_what_is_missing_is_noticed_and_made_again(net: Net, undo: str) -> None:
    guard(net)
    assert net.node.ask({"task": "guarded", "sliver": SLIVER}) == [True]
    net.node.shell(undo)
    assert net.node.ask({"task": "guarded", "sliver": SLIVER}) == [False]
    guard(net)
    assert entries(net) == [OWN]
    settings = [f"ipv4/conf/{LINK}/rp_filter", f"ipv4/conf/{LINK}/arp_accept", f"ipv6/conf/{LINK}/disable_ipv6"]
    assert net.node.shell(f"cd /proc/sys/net; cat {' '.join(settings)}").split() == ["1", "0", "1"]


def test_a_link_that_is_not_there_needs_nothing(net: Net) -> None:
    """A tenant may remove it from inside; that of the mate is not made yet either."""
    gone = f"{A1[1]}-7"
    assert net.node.ask({"task": "guarded", "sliver": gone}) == [True]
    assert net.node.ask({"task": "guard", "sliver": gone, "address": "10.77.0.9"}) == [False]
    assert json.loads(net.node.shell("ip -j neigh show 10.77.0.9")) == []


INSIDE = """
import os, socket, struct
eth = [line.split()[0] for line in open("/proc/net/route").read().splitlines()[1:] if line.split()[1] == "00000000"][0]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
    link.bind((eth, 0))
    own = link.getsockname()[4]
    for number in range(1, COUNT + 1):
        addresses = own + bytes([198, 18, 0, number]) + bytes(6) + socket.inet_aton("169.254.1.1")
        link.send(bytes([255]) * 6 + own + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + addresses)
""".replace("COUNT", str(COUNT))


@pytest.mark.usefixtures("each_type")
def test_the_agent_gives_every_link_its_one_neighbour(node: Node) -> None:
    """Also one that runs already and has lost it, as those have that an earlier agent made."""
    sliver = node.create("exp")["slivers"][0]
    link, mac = names.link(sliver["id"]), names.mac(sliver["id"])
    process = node.box.run(["pgrep", "-f", f"sm-{sliver['id']}"]).stdout

    def found() -> list[tuple[str, str, list[str]]]:
        told = json.loads(node.box.run(["ip", "-j", "neigh", "show", "dev", link], check=True).stdout)
        return [(one["dst"], one.get("lladdr", ""), one["state"]) for one in told]

    def forge_inside() -> None:
        node.inside("exp", f"python3 - <<'END'\n{INSIDE}\nEND")

    own = (sliver["address"], mac, ["PERMANENT"])
    forge_inside()
    assert found() == [own]
    undo = f"echo 0 > /proc/sys/net/ipv4/conf/{link}/rp_filter; ip neigh del {sliver['address']} dev {link}"
    node.kill("agent")
    node.box.run(["sh", "-c", undo], check=True)
    forge_inside()
    assert len(found()) > COUNT, "the control: what libvirt makes"
    node.start_agent()
    eventually(lambda: own in found(), "the agent has set the neighbour again", 60)
    node.box.run(["ip", "neigh", "flush", "dev", link, "nud", "stale"], check=True)
    forge_inside()
    assert found() == [own]
    assert node.box.run(["pgrep", "-f", f"sm-{sliver['id']}"]).stdout == process

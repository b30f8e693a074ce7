"""Addresses and links of boxes. The firewall and the sysctls of the host are never changed."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from nodebox_linux import BoxError, command

UPLINKS = IPv4Network("172.31.250.0/24")
LANS = IPv4Network("172.31.251.0/24")
SWITCHES = IPv4Network("172.31.252.0/24")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def host_device(name: str) -> str:
    """The name of the host's end of a box's uplink (at most 15 characters)."""
    return f"nb-{_digest(name)[:10]}"


def port_device(name: str) -> str:
    """The name of a switch's end of a cable (at most 15 characters)."""
    return f"port-{_digest(name)[:10]}"


def hardware_address(name: str) -> str:
    """The Ethernet address of a cable's end, as of an interface card: neighbours remember it over a reboot."""
    return ":".join(["02", *(_digest(name)[at : at + 2] for at in range(0, 10, 2))])


def choose(name: str, pool: IPv4Network, taken: Iterable[IPv4Network], prefix: int = 30) -> IPv4Network:
    """A free block of the pool; the same for the same name as long as it is free."""
    blocks = list(pool.subnets(new_prefix=prefix))
    taken = list(taken)
    first = int(_digest(name), 16) % len(blocks)
    for block in blocks[first:] + blocks[:first]:
        if not any(block.overlaps(other) for other in taken):
            return block
    raise BoxError(f"every /{prefix} of {pool} is taken or routed elsewhere")


def ends(block: IPv4Network) -> tuple[IPv4Address, IPv4Address]:
    """The two usable addresses of a /30: that of the outer end and that of the box."""
    return block[1], block[2]


def parse_routes(text: str) -> list[IPv4Network]:
    """The networks in the output of `ip -j -4 route show table all`, without default routes."""
    networks = []
    for route in json.loads(text or "[]"):
        if route["dst"] != "default" and route.get("type") not in ("unreachable", "blackhole", "prohibit"):
            networks.append(IPv4Network(route["dst"], strict=False))
    return [network for network in networks if network.prefixlen >= 8]


def host_networks() -> list[IPv4Network]:
    return parse_routes(command(["ip", "-j", "-4", "route", "show", "table", "all"]))


def batch(pid: int | None, lines: Iterable[str]) -> None:
    """Run `ip` commands in the network namespace of a process, or in the host's. Raises BoxError."""
    enter = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
    command([*enter, "ip", "-batch", "-"], input="\n".join(lines) + "\n")


def has_device(pid: int, device: str) -> bool:
    """Whether the network namespace of a process has a device."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
    return any(line.split(":")[0].strip() == device for line in lines)


def remove_host_device(device: str) -> None:
    """Remove a device if it exists. The kernel also removes it some time after the namespace of its other end."""
    link = Path("/sys/class/net", device)
    if link.exists():
        try:
            batch(None, [f"link del {device}"])
        except BoxError:
            if link.exists():
                raise


def connect_uplink(device: str, block: IPv4Network, box: int, outside: int | None) -> None:
    """A veth pair between the box and the host, or its outside namespace (where the end is `eth0` as well)."""
    remove_host_device(device)
    outer, inner = ends(block)
    batch(None, [f"link add {device} type veth peer name eth0 netns {box}"])
    if outside is not None:
        batch(None, [f"link set {device} netns {outside} name eth0"])
    far = "eth0" if outside is not None else device
    batch(outside, [f"addr add {outer}/30 dev {far}", f"link set {far} up"])
    batch(box, [f"addr add {inner}/30 dev eth0", "link set eth0 up", f"route add default via {outer}"])


def connect_lan(block: IPv4Network, device: str, one: int, other: int) -> None:
    """A veth pair between two boxes, called `device` in both; the first box gets the lower address."""
    batch(one, [f"link add {device} type veth peer name {device} netns {other}"])
    for pid, address in zip((one, other), ends(block), strict=True):
        batch(pid, [f"addr add {address}/30 dev {device}", f"link set {device} up"])


def parse_block(text: str) -> IPv4Network:
    return ipaddress.IPv4Network(text)

"""The table of the peers: required programs, their packages, expected costs, and the class that controls each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slicemgr.bench.peers.namespaces import Sandbox
from slicemgr.bench.peers.systems import MIB, NSPAWN, Lxc, Nspawn, System, Work, docker, find, incus, lxd, podman
from slicemgr.drivers import command


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimated cost of a container, for the dry run and the guard.

    seconds: of its creation and deletion. memory: bytes. pids: processes.
    """

    seconds: float
    memory: int
    pids: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer. programs: all of them must be installed. package: the command or package that installs them."""

    label: str
    programs: tuple[str, ...]
    package: str
    version: tuple[str, ...]
    cost: Cost
    make: Callable[[Sandbox, Work], System]

    def missing(self) -> list[str]:
        return [one for one in self.programs if find(one) is None]


def version(peer: Peer) -> str:
    """The version of a peer, which is the first line of its output; "" if the command fails."""
    try:
        said = command.run([find(peer.version[0]) or peer.version[0], *peer.version[1:]], timeout=30)
    except command.CommandFailed:
        return ""
    return said.decode(errors="replace").strip().partition("\n")[0]


# Costs: measured with 20 ports per container on 2 cores before this experiment existed; systemd-nspawn: estimated.
PEERS = {
    "docker": Peer(
        "Docker",
        ("dockerd", "docker"),
        "apt-get install docker.io",
        ("dockerd", "--version"),
        Cost(3.0, 37 * MIB, 60),
        docker,
    ),
    "podman-crun": Peer(
        "Podman, crun",
        ("podman", "crun"),
        "apt-get install podman crun",
        ("podman", "--version"),
        Cost(0.5, 10 * MIB, 5),
        podman("crun"),
    ),
    "podman-runc": Peer(
        "Podman, runc",
        ("podman", "runc"),
        "apt-get install podman runc",
        ("podman", "--version"),
        Cost(0.6, 10 * MIB, 5),
        podman("runc"),
    ),
    "lxd": Peer(
        "LXD",
        ("lxd", "lxc", "dnsmasq"),
        "apt-get install lxd",
        ("lxd", "--version"),
        Cost(1.5, 31 * MIB, 30),
        lxd,
    ),
    "incus": Peer(
        "Incus",
        ("incusd", "incus", "dnsmasq"),
        "apt-get install incus (Debian 13, or 12 with backports)",
        ("incus", "--version"),
        Cost(1.5, 31 * MIB, 30),
        incus,
    ),
    "lxc": Peer(
        "plain LXC",
        ("lxc-start", "lxc-destroy", "lxc-info"),
        "apt-get install lxc",
        ("lxc-start", "--version"),
        Cost(0.3, 8 * MIB, 3),
        Lxc,
    ),
    "nspawn": Peer(
        "systemd-nspawn",
        (NSPAWN,),
        "apt-get install systemd-container",
        (NSPAWN, "--version"),
        Cost(0.3, 8 * MIB, 3),
        Nspawn,
    ),
}

"""A simulated node with peers: their programs are fakes in PATH, its slices those of a simulated testbed.

As a program, it is slicectl with these: `python paper_peers.py WORLD ARGUMENTS…`.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import plain_plots
from canned_service import Answer
from paper_testbed import PaperTestbed

from slicemgr.bench.experiments import peers
from slicemgr.bench.peers import namespaces, sides, systems
from slicemgr.cli import main
from slicemgr.drivers import command

SHA = "ab" * 32
AROUND = ("unshare", "nsenter", "ip", "btrfs", "iptables-restore", "iperf3")
REAL = ("sh", "env", "setsid", "tar", "cat", "sleep", "mkdir", "git")
DOCKER = ("docker", "dockerd")
HAND = ("lxc-start", "lxc-destroy", "lxc-info")
ALL = (*DOCKER, *HAND, "systemd-nspawn", "podman", "crun", "runc", "lxd", "lxc", "incusd", "incus", "dnsmasq")


class PeerTestbed(PaperTestbed):
    """A simulated testbed whose node is this host."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.on("GET /images/debian-12", lambda _: Answer(200, {"name": "debian-12", "sha256": SHA}))

    def _node(self) -> dict[str, Any]:
        node = super()._node()
        node["facts"]["boot_id"] = self.boot_id
        return node


class World:
    """The folder of the fakes, with a pool that has the base of one image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.there = path / "there"
        self.pool = path / "pool"
        self.bin = path / "bin"
        self.cgroups = path / "cgroup"

    def make(self, programs: Iterable[str] = ()) -> None:
        base = self.pool / "bases" / SHA / "etc"
        for one in (self.there, self.bin, self.cgroups, base):
            one.mkdir(parents=True)
        (base / "hostname").write_text("paper\n")
        (self.path / "slicemgr.toml").write_text(f'[node]\npool = "{self.pool}"\n')
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.install(*AROUND, *programs)

    def install(self, *programs: str) -> None:
        fake = Path(__file__).with_name("fake_peer.py")
        for name in programs:
            file = self.bin / name
            file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{fake}" "{self.path}" {name} "$@"\n')
            file.chmod(0o755)

    def patch(self, change: Callable[[object, str, object], None]) -> None:
        """Set the constants of the sandbox for this world. change: monkeypatch.setattr or setattr."""
        change(command, "_PATH", str(self.bin))
        change(systems, "_ELSEWHERE", ())
        change(systems, "FIRST_PORT", _free_ports())
        change(peers, "_SETTLE", 0.0)
        change(os, "geteuid", lambda: 0)
        change(namespaces, "inside", lambda _mark: 1)
        for module in (peers, sides, systems, namespaces):
            for name, value in (("PEER_SIDE", "127.0.0.1"), ("NODE_SIDE", "127.0.0.1"), ("CGROUPS", self.cgroups)):
                if hasattr(module, name):
                    change(module, name, value)

    @property
    def calls(self) -> list[str]:
        file = self.path / "log"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def left(self) -> list[str]:
        """The files of peers on the pool, and the containers that run."""
        running = [one.name for one in self.there.iterdir() if _runs(one.read_text())]
        return sorted([*(one.name for one in self.pool.iterdir() if one.name != "bases"), *running])


def _free_ports() -> int:
    """The first of 50 free ports, below the kernel's range of ephemeral ports."""
    while True:
        first = random.randrange(10_000, 32_000, 50)
        try:
            for port in range(first, first + 50):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


def _runs(pid: str) -> bool:
    """Whether a process runs; one that has ended may still be a zombie."""
    file = Path(f"/proc/{pid}/cmdline")
    return file.exists() and bool(file.read_bytes())


if __name__ == "__main__":
    world = World(Path(sys.argv[1]))
    world.patch(setattr)
    plain_plots.use(setattr, plain_plots.PLAIN)
    sys.exit(main(sys.argv[2:]))

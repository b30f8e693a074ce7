"""A switch between boxes: a bridge in a network namespace of its own, with a cable to the host.

Files of a switch, in /var/tmp/slicemgr-switches/NAME: switch.json has its network, keeper.json the process that keeps
its namespace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import nodebox_cgroups as cgroups
import nodebox_keeper as keeper
import nodebox_network as network
from nodebox_linux import BoxError, Process, detach, locked, wait_until, write_json

SWITCHES = Path("/var/tmp/slicemgr-switches")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
BRIDGE, HOST_PORT = "br0", "host"
_DELAY_READY = 60.0  # seconds; for a machine with much load
_DELAY = Path(__file__).with_name("nodebox_delay.py")


@dataclass(frozen=True, slots=True)
class Cable:
    """A veth between a box and a switch. address: with its prefix length. outside: in the box's outside namespace.

    delay: milliseconds that a frame needs in each direction; with one, the cable consists of taps (`nodebox_delay`).
    """

    switch: str
    device: str
    address: str
    outside: bool = False
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """The output of `nodebox switch NAME show`. gateway: the address of the host."""

    name: str
    network: str
    gateway: str
    keeper: int | None


def names() -> list[str]:
    return sorted(path.name for path in SWITCHES.iterdir()) if SWITCHES.exists() else []


class Switch:
    """One switch, by name."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise BoxError(f"name {name!r}: up to 32 of a-z, 0-9 and -, neither first nor last a -")
        self.name = name
        self._full = f"{name}.switch"  # no box has this name

    @property
    def directory(self) -> Path:
        return SWITCHES / self.name

    @property
    def block(self) -> IPv4Network:
        try:
            return IPv4Network(json.loads((self.directory / "switch.json").read_text())["network"])
        except FileNotFoundError as error:
            raise BoxError(f"there is no switch {self.name!r}: nodebox switch {self.name} make") from error

    @property
    def gateway(self) -> IPv4Address:
        """The address of the host, which is the router of all boxes at this switch."""
        return self.block[1]

    @property
    def pid(self) -> int | None:
        """The process that keeps the namespace; None if it does not run."""
        try:
            found = Process(**json.loads((self.directory / "keeper.json").read_text()))
        except FileNotFoundError:
            return None
        return found.pid if found.alive else None

    def facts(self) -> Facts:
        return Facts(self.name, str(self.block), str(self.gateway), self.pid)

    def make(self) -> Facts:
        """Create the switch, or start it again; one that runs is not changed. Cables of boxes are theirs to restore."""
        with locked(SWITCHES):
            self.directory.mkdir(mode=0o711, exist_ok=True)
            if not (self.directory / "switch.json").exists():
                taken = network.host_networks() + [Switch(name).block for name in names() if Switch(name)._known]
                block = network.choose(self._full, network.SWITCHES, taken, prefix=27)
                write_json(self.directory / "switch.json", {"network": str(block)})
            if self.pid is None or not Path("/sys/class/net", network.host_device(self._full)).exists():
                self._stop()
                self._start()
        return self.facts()

    @property
    def _known(self) -> bool:
        return (self.directory / "switch.json").exists()

    def _start(self) -> None:
        places = cgroups.current(self._full)
        pid = detach(lambda: keeper.outside(self.name, places), log=self.directory / "keeper.log")
        write_json(self.directory / "keeper.json", dataclasses.asdict(Process.of(pid)))
        device = network.host_device(self._full)
        network.batch(pid, ["link set lo up", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"])
        network.batch(None, [f"link add {device} type veth peer name {HOST_PORT} netns {pid}"])
        network.batch(pid, [f"link set {HOST_PORT} master {BRIDGE} up"])
        network.batch(None, [f"addr add {self.gateway}/{self.block.prefixlen} dev {device}", f"link set {device} up"])

    def _stop(self) -> None:
        cgroups.kill(cgroups.find(self._full))
        network.remove_host_device(network.host_device(self._full))

    def destroy(self) -> None:
        """Remove the switch completely, if it exists; the cables of boxes to it end."""
        with locked(SWITCHES):
            self._stop()
            if self.directory.exists():
                shutil.rmtree(self.directory)
            with contextlib.suppress(OSError):
                SWITCHES.rmdir()

    def free_address(self, taken: Collection[str]) -> str:
        """An address with its prefix length, that no other cable has."""
        every = (f"{host}/{self.block.prefixlen}" for host in list(self.block.hosts())[1:])
        free = next((one for one in every if one not in taken), None)
        if free is None:
            raise BoxError(f"switch {self.name!r} has no free address in {self.block}")
        return free

    def connect(self, cable: Cable, owner: str, pid: int) -> None:
        """Create a cable to the namespace of a process, with a default route, unless it exists. owner: the box."""
        port = network.port_device(f"{owner} {cable.device}")
        hardware = network.hardware_address(f"{owner} {cable.device}")
        if self.pid is None:
            raise BoxError(f"switch {self.name!r} does not run: nodebox switch {self.name} make")
        if network.has_device(self.pid, port) and network.has_device(pid, cable.device):
            return
        self.disconnect(cable, owner, pid)
        if cable.delay:
            self._start_delay(port, pid, cable)
        else:
            network.batch(self.pid, [f"link add {port} type veth peer name {cable.device} netns {pid}"])
        network.batch(self.pid, [f"link set {port} master {BRIDGE} up"])
        network.batch(
            pid,
            [
                f"addr add {cable.address} dev {cable.device}",
                f"link set {cable.device} address {hardware} up",
                f"route replace default via {self.gateway}",
            ],
        )

    def disconnect(self, cable: Cable, owner: str, pid: int) -> None:
        """Remove both ends of a cable, if they are there."""
        for where, device in ((self.pid, network.port_device(f"{owner} {cable.device}")), (pid, cable.device)):
            with contextlib.suppress(BoxError):  # the kernel may be removing it with the namespace of its other end
                network.batch(where, [f"link del {device}"])

    def _start_delay(self, port: str, pid: int, cable: Cable) -> None:
        """Start the process that makes both ends of a cable with a delay, and wait for them.

        It ends with the switch or the box.
        """
        switch = self.pid
        words = (_DELAY, str(switch), port, str(pid), cable.device, str(cable.delay))
        argv = [sys.executable, *map(str, words)]
        detach(lambda: os.execv(sys.executable, argv), log=self.directory / "delay.log")

        def there() -> bool:
            return network.has_device(switch or 0, port) and network.has_device(pid, cable.device)

        if not wait_until(there, _DELAY_READY):
            log = (self.directory / "delay.log").read_text()
            raise BoxError(f"the cable of {self.name} with a delay does not start: {log[-500:]}")

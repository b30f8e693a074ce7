"""A node of a testbed of boxes: a box with agent and link that has joined by the command of `slicectl node add`."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from boxed_centre import SETTINGS, STATE, Centre, Daemons
from demo import VENV
from nodebox_box import Box
from nodebox_linux import BoxError
from nodebox_switch import Switch

_MEMBERSHIP = STATE / "membership"
_PORTS = "10000:32767"  # of slivers, the default of network.ports_first and ports_last
_TEXT = """\
[node]
name = "{name}"
address = "{address}"

[web]
user = "65534:65534"
"""
# What a router of a home or an institute does: connections from inside, and only forwarded ports from outside.
_ROUTER = f"""\
echo 1 > /proc/sys/net/ipv4/ip_forward
iptables -P FORWARD DROP
iptables -F FORWARD
iptables -t nat -F
iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A FORWARD -i eth0 -o wan -j ACCEPT
iptables -A FORWARD -i wan -m conntrack --ctstate DNAT -j ACCEPT
iptables -t nat -A POSTROUTING -o wan -j MASQUERADE
iptables -t nat -A PREROUTING -i wan -p tcp --dport {_PORTS} -j DNAT --to-destination $1
iptables -t nat -A PREROUTING -i wan -p udp --dport {_PORTS} -j DNAT --to-destination $1
"""


class BoxedNode:
    """behind_nat: its box is at a router with the address of the node, which forwards the ports of slivers.

    venv: the virtual environment with its version of slicemgr. trip: milliseconds that its cable adds to a round trip.
    more: settings.
    """

    def __init__(
        self,
        box: Box,
        switch: Switch,
        name: str,
        site: str,
        *,
        behind_nat: bool = False,
        venv: Path = VENV,
        trip: float = 0.0,
        more: str = "",
    ) -> None:
        self.box, self.name, self.site, self.address = box, name, site, ""
        self._more = more
        self.daemons = Daemons(box, venv)
        self._switch, self._behind_nat, self._trip = switch, behind_nat, trip

    def start(self, centre: Centre) -> None:
        """Bring the box up, let it join unless it has, and start what does not run."""
        self.box.make(link="outside" if self._behind_nat else "none")
        self.address = self.box.plug(self._switch, outside=self._behind_nat, delay=self._trip / 2)
        if self._behind_nat:
            done = self.box.run_outside(["sh", "-ec", _ROUTER, "sh", self.box.address])
            if done.returncode != 0:
                raise BoxError(f"the router of {self.name}: {done.stderr.strip()}")
        self.box.path(SETTINGS).write_text(_TEXT.format(name=self.name, address=self.address) + self._more)
        if not self._is_member(centre):
            self._join(centre)
        self.start_again()

    def start_again(self) -> None:
        """Start everything after a reboot, also without the centre. Raises BoxError."""
        self.daemons.shell(f"{self.daemons.venv}/bin/slicemgr init")
        self.start_programs()

    def start_programs(self) -> None:
        """Start what does not run, on a host that has joined. Raises BoxError."""
        self.box.libvirtd("start")
        self.daemons.slicemgr("link")
        if self.box.daemon("agent") is None:
            before = self.daemons.log("agent").count("is ready")
            self.daemons.slicemgr("agent", lambda: self.daemons.log("agent").count("is ready") > before)

    def _is_member(self, centre: Centre) -> bool:
        """Whether the box has a certificate of this testbed, which knows the node."""
        file = self.box.path(_MEMBERSHIP / "authority.pem")
        if not file.exists() or file.read_bytes() != centre.authority.read_bytes():
            return False
        return self._state(centre) in ("joined", "active")

    def _state(self, centre: Centre) -> str | None:
        listed = json.loads(centre.slicectl("node", "list", "-f", "json"))
        return next((str(one["state"]) for one in listed if one["name"] == self.name), None)

    def _join(self, centre: Centre) -> None:
        """By the line that an admin copies to the host. What is left of an earlier attempt or testbed is removed."""
        for daemon in ("agent", "link"):
            self.box.signal_daemon(daemon, signal.SIGKILL)
        shutil.rmtree(self.box.path(_MEMBERSHIP), ignore_errors=True)
        for file in self.box.path(STATE).glob("mirror.db*"):
            file.unlink()
        if self._state(centre) in ("joined", "active"):
            centre.slicectl("node", "remove", self.name, "--yes")
        line = centre.slicectl("node", "add", self.name, "--site", self.site).strip()
        done = self.daemons.run_shell(f"PATH={self.daemons.venv}/bin:$PATH; {line}")
        if done.returncode != 0:
            raise BoxError(f"{self.name} could not join: {done.stderr.strip()}")


def memory(box: Box) -> int | None:
    """Bytes of memory that the box uses, with its page cache; None where the host does not count it."""
    state = box.state
    for member in state.members if state else ():
        for file in ("memory.usage_in_bytes", "memory.current"):
            if (Path(member) / file).exists():
                return int((Path(member) / file).read_text())
    return None

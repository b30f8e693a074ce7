"""The host itself as the centre of a testbed, and a second host beside it, on a production-like machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import demo
import prodhost
from host_node import HostNode
from testbed import LOG_LINES, Node, eventually

from slicemgr import config, store
from slicemgr.errors import SlicemgrError

UNITS = ("web", "agent", "signer", "hub")  # of slicemgr on a centre
SERVICES = ("rabbitmq-server", "postgresql", "nginx")
OWN, NODE = "node1", "node7"  # names of the centre's own node, and of the second host as in docs/how-to/nodes.md
NETWORK = "users"  # its network namespace, of lan.service
NODE_ADDRESS = "192.0.2.99"
LONG = 900.0  # seconds in which RabbitMQ starts in an emulated machine
SETTINGS = Path("/etc/slicemgr/slicemgr.toml")
_PLACE = Path("/srv/node7")
_FOLDERS = {"etc": SETTINGS.parent, "lib": Path("/var/lib/slicemgr"), "run": Path("/run/slicemgr")}
_DROP_IN = Path("/etc/systemd/system/slicemgr-link.service.d/second-host.conf")

Listening = Mapping[tuple[str, int], frozenset[str]]


def listening(text: str) -> Listening:
    """The programs that listen at each address and port. text: the output of `ss -Htlnp`."""
    found: dict[tuple[str, int], frozenset[str]] = {}
    for line in text.splitlines():
        place = line.split()[3]
        address, _, port = place.rpartition(":")
        key = address.partition("%")[0].strip("[]"), int(port)
        found[key] = found.get(key, frozenset()) | set(re.findall(r'\("([^"]+)",pid=', line))
    return found


def reachable(places: Listening) -> dict[int, frozenset[str]]:
    """The programs that other hosts can reach, by port."""
    found: dict[int, frozenset[str]] = {}
    for (address, port), programs in places.items():
        if address == "*" or not ip_address(address).is_loopback:
            found[port] = found.get(port, frozenset()) | programs
    return found


def exposure(text: str) -> float:
    """The last line of `systemd-analyze security UNIT`: 0 is best, 10 is worst."""
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", text)
    if found is None:
        raise ValueError(f"no exposure level in {text[-200:]!r}")
    return float(found[1])


def documented(page: Path, heading: str, *beginnings: str) -> list[str]:
    """The documented commands that begin so, in their order. ValueError if one is missing."""
    found = [one for one in prodhost.commands_below(page.read_text(), heading) if one.startswith(beginnings)]
    for beginning in beginnings:
        if not any(one.startswith(beginning) for one in found):
            raise ValueError(f"{page.name}: {heading}: no command begins with {beginning!r}")
    return found


def settings_of_proxy() -> str:
    """The documented settings of a service behind nginx."""
    commands = prodhost.commands_below(prodhost.INSTALL.read_text(), prodhost.PROXY)
    return "\n".join(commands[commands.index("[web]") :]) + "\n"


def settings_of_second_host(text: str) -> str:
    """text: the settings of the machine, of which only the names of the node differ."""
    for name, value in (("name", NODE), ("address", NODE_ADDRESS)):
        text = re.sub(rf"^{name} = .*$", f'{name} = "{value}"', text, count=1, flags=re.MULTILINE)
    return text


class CentreHost(HostNode):
    """A node of one machine, which becomes a centre."""

    def __init__(self) -> None:
        super().__init__()
        self.key = Path("/root/centre_ed25519")
        self.kept = {"kept"}

    def logs(self) -> dict[str, str]:
        words = ["journalctl", "--no-pager", "--boot", f"--lines={LOG_LINES}", "--unit"]
        return {unit: self.box.run([*words, unit]).stdout for unit in ("slicemgr-*", *SERVICES)}

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with store.open(config.load()) as opened, opened.read() as c:
            return [tuple(row) for row in c.exec_driver_sql(query)]

    @cached_property
    def simple_quotas(self) -> bool:
        checks = {one["name"]: one["detail"] for one in json.loads(self.ok("doctor", "--node", OWN, "-f", "json"))}
        return "simple" in checks["disk quota"]

    def sh(self, script: str, seconds: float = 300) -> str:
        """Run a script as the administrator, beside the copied sources. It must succeed. Returns the output."""
        done = self.try_sh(script, seconds)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def try_sh(self, script: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = self.box.run(
            ["sh", "-ec", f"cd {prodhost.REPO}\n{script}"], timeout=seconds
        )
        return done

    def property(self, unit: str, name: str) -> str:
        return self.sh(f"systemctl show -p {name} --value {unit}").strip()

    def processes(self, *units: str) -> dict[str, int | None]:
        """The main process of each unit of slicemgr."""
        return {unit: self.box.daemon(unit) for unit in units}

    def places(self) -> Listening:
        return listening(self.sh("ss -Htlnp"))

    def node_row(self, name: str) -> dict[str, Any]:
        with self.client() as admin:
            return {**admin.nodes.get(name)}

    def reported(self, name: str, column: str, since: datetime) -> bool:
        """Whether a node has reported after a time; also while the service does not answer, which is False."""
        try:
            at = self.node_row(name)[column]
        except (SlicemgrError, OSError):
            return False
        return at is not None and datetime.fromisoformat(at) > since

    def works(self, since: datetime, seconds: float = 300) -> None:
        """Wait until web, agent, hub and the link of the second host have worked after a time."""
        eventually(lambda: demo.answers(self.url), "the web process answers", seconds)
        eventually(lambda: self.reported(OWN, "agent_seen_at", since), "the agent of the centre reports", seconds)
        eventually(lambda: self.reported(NODE, "beat_at", since), f"the link of {NODE} reports", seconds)


def status(process: int) -> dict[str, list[str]]:
    """The words of each line of /proc/PROCESS/status."""
    lines = (line.partition(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {name: words.split() for name, _, words in lines}


class SecondHost:
    """A host without an agent: a network namespace of the machine, and files of its own.

    Its programs and the unit of its link find these files at the usual places. The unit is the machine's, which needs
    none for itself, because it has not joined a testbed.
    """

    def __init__(self, centre: Node) -> None:
        self._centre = centre

    @property
    def _options(self) -> list[str]:
        binds = [f"{_PLACE / name}:{place}" for name, place in _FOLDERS.items()]
        return [f"NetworkNamespacePath=/run/netns/{NETWORK}", f"BindPaths={' '.join(binds)} /var/lib/slicemgr/pool"]

    def make(self, settings: str) -> None:
        """Make its files. settings: of the machine before it was a centre."""
        for name in _FOLDERS:
            (_PLACE / name).mkdir(parents=True)
        (_PLACE / "lib" / "pool").mkdir()
        (_PLACE / "etc" / SETTINGS.name).write_text(settings_of_second_host(settings))
        self._centre.box.run(
            ["ip", "netns", "exec", NETWORK, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True
        )
        condition = f"ConditionPathExists={_PLACE}/lib/membership/centre.json"
        lines = ["[Unit]", "ConditionPathExists=", condition, "[Service]", *self._options]
        _DROP_IN.parent.mkdir()
        _DROP_IN.write_text("\n".join(lines) + "\n")
        self._centre.box.run(["systemctl", "daemon-reload"], check=True, timeout=300)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command line there."""
        words = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect"]
        words += [word for one in self._options for word in ("-p", one)]
        done: subprocess.CompletedProcess[str] = self._centre.box.run(
            [*words, "sh", "-ec", f"PATH=/usr/sbin:/usr/bin:/sbin:/bin; {line}"], timeout=900
        )
        return done

    def remove(self) -> None:
        """Remove its files and the change of the unit."""
        self._centre.box.run(["systemctl", "stop", "slicemgr-link"], check=True, timeout=300)
        shutil.rmtree(_DROP_IN.parent)
        shutil.rmtree(_PLACE)
        self._centre.box.run(["systemctl", "daemon-reload"], check=True, timeout=300)

"""A node, two slices, an outside host and other networks as network namespaces, for tests of the packet filter.

The namespaces live as long as the `firewall_peer` processes in them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slicemgr import names

PEER = Path(__file__).parent / "system" / "firewall_peer.py"
NODE, OUTSIDE, DENIED, GATEWAY = "192.0.2.1", "192.0.2.2", "203.0.113.9", "169.254.1.1"
NO, YES = 0.4, 10.0  # seconds to wait if no answer, or an answer, is expected
TAG_A, TAG_B = "aaaabbbb", "aaaacccc"
A0, A1 = [f"{TAG_A}-0", TAG_A, "10.77.0.2", [10000, 20], 2], [f"{TAG_A}-1", TAG_A, "10.77.0.3", [10020, 20], 2]
B0 = [f"{TAG_B}-0", TAG_B, "10.77.0.4", [10040, 1], 1]
SLIVERS: dict[str, list[Any]] = {"a0": A0, "a1": A1, "b0": B0}
ALL = list(SLIVERS.values())
Task = dict[str, Any]


class Peer:
    """A network namespace and the process in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        argv = ["unshare", "--net", sys.executable, str(PEER), name]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def ready(self) -> Peer:
        assert self._read() == "ready"
        self.shell(
            "ip link set lo up; cd /proc/sys/net; echo 1 > ipv4/ip_forward; echo 0 > ipv6/conf/default/accept_dad;"
            "for file in ipv4/conf/*/rp_filter; do echo 0 > $file; done"
        )
        return self

    def shell(self, script: str) -> str:
        argv = ["nsenter", "-t", str(self.pid), "-n", "sh", "-ec", script]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    def tell(self, *tasks: Task) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(tasks) + "\n")
        self._process.stdin.flush()

    def heed(self) -> list[Any]:
        answers = self._read()
        assert isinstance(answers, list)
        return answers

    def ask(self, *tasks: Task) -> list[Any]:
        self.tell(*tasks)
        return self.heed()

    def firewall(self, do: str, setting: str, **more: Any) -> Any:
        return self.ask({"task": "firewall", "do": do, "setting": setting, **more})[0]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Net:
    """The node, its slivers and its neighbours. All calls of a `try` run at once."""

    def __init__(self, peers: dict[str, Peer], setting: str) -> None:
        self.peers, self.node, self.setting = peers, peers["node"], setting

    def publish(self, slivers: list[list[Any]] = ALL, full: bool = False, **network: Any) -> None:
        """network: settings that differ from the usual ones."""
        assert self.node.firewall("replace", self.setting, slivers=slivers, full=full, network=network) is None

    def problems(self) -> list[str]:
        found = self.node.firewall("check", self.setting)
        assert isinstance(found, list)
        return found

    def try_all(self, *calls: tuple[str, Task]) -> list[Any]:
        """The results of (peer, task), in order; all peers run their tasks at the same time."""
        asked: dict[str, list[Task]] = {}
        for peer, task in calls:
            asked.setdefault(peer, []).append(task)
        for peer, tasks in asked.items():
            self.peers[peer].tell(*tasks)
        answers = {peer: iter(self.peers[peer].heed()) for peer in asked}
        return [next(answers[peer]) for peer, _ in calls]

    def save(self) -> str:
        """All rules of the backend in use, IPv4 and IPv6."""
        suffix = "-legacy-save" if self.setting == "legacy" else "-save"
        text = self.node.shell(f"iptables{suffix}; ip6tables{suffix}")
        return "\n".join(line for line in text.splitlines() if not line.startswith("#"))

    def iptables(self, *rules: str) -> None:
        """Apply rules of another program on the node."""
        program = "iptables-legacy" if self.setting == "legacy" else "iptables"
        self.node.shell("\n".join(f"{program} -w {rule}" for rule in rules))


def tcp(host: str, port: int, wait: float = YES) -> Task:
    return {"task": "tcp", "host": host, "port": port, "wait": wait}


def udp(host: str, port: int, wait: float = YES, **more: Any) -> Task:
    return {"task": "udp", "host": host, "port": port, "wait": wait, **more}


def ping(host: str, wait: float = YES) -> Task:
    return {"task": "ping", "host": host, "wait": wait}


def spoof(source: str, host: str, port: int, text: str) -> Task:
    return {"task": "spoof", "source": source, "host": host, "port": port, "text": text}


@contextlib.contextmanager
def built(setting: str) -> Iterator[Net]:
    """The topology. Links have the real names, and the rp_filter of the node is off."""
    with contextlib.ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name in ("node", "outside", "foreign", "bridged", *SLIVERS):
            peers[name] = Peer(name)
            stack.callback(peers[name].end)
        for peer in peers.values():
            peer.ready()
        node = peers["node"]
        # The outside host has the route that a LAN host would need to reach the pool.
        node.shell(
            "cd /proc/sys/net/ipv4/conf\n"
            + "".join(
                f"ip link add {link} type veth peer name eth0 netns {peers[peer].pid}\n"
                f"ip address add {address} dev {link}; ip link set {link} up; echo 0 > {link}/rp_filter\n"
                for link, peer, address in (
                    ("eth0", "outside", f"{NODE}/24"),
                    ("smc0", "foreign", "198.51.100.1/24"),
                    ("docker0", "bridged", "172.17.0.1/16"),
                    *((names.link(one[0]), name, f"{GATEWAY} peer {one[2]}/32") for name, one in SLIVERS.items()),
                )
            )
            + f"ip route add {DENIED} via {OUTSIDE}"
        )
        peers["outside"].shell(
            f"ip address add {OUTSIDE}/24 dev eth0; ip address add {DENIED}/32 dev lo; ip link set eth0 up;"
            f"ip route add 10.77.0.0/16 via {NODE}; ip route add 198.51.100.0/24 via {NODE}"
        )
        for name, address, gateway in (
            ("foreign", "198.51.100.2/24", "198.51.100.1"),
            ("bridged", "172.17.0.2/16", "172.17.0.1"),
        ):
            peers[name].shell(
                f"ip address add {address} dev eth0; ip link set eth0 up; ip route add default via {gateway}"
            )
        for name, one in SLIVERS.items():
            peers[name].shell(
                f"ip address add {one[2]} peer {GATEWAY}/32 dev eth0; ip link set eth0 up;"
                f"ip route add default via {GATEWAY}"
            )
        net = Net(peers, setting)
        ports = {
            "node": [2222],
            "outside": [80],
            "bridged": [80],
            "a0": [22, 10001, 10019, 8080],
            "a1": [22, 10020, 10039, 8080],
            "b0": [22, 8080],
        }
        net.try_all(*((peer, {"task": "serve", "ports": some}) for peer, some in ports.items()))
        yield net

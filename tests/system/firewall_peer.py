"""One end of the packet filter's tests: a process in its own network namespace that runs tasks.

It reads a list of tasks as one line of JSON, runs them at the same time, and answers with the list of results.
The result of an attempt without an answer is null. Every service answers `NAME ADDRESS-OF-THE-CALLER PORT-CALLED`.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slicemgr.config import NetworkConfig
from slicemgr.drivers.network import conntrack, firewall_trial, neighbours
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.network.firewall_rules import Published
from slicemgr.errors import SlicemgrError
from slicemgr.model import PortBlock

NAME = sys.argv[1]
_ETH_ARP = 0x0806
heard: list[list[str]] = []  # source and text of every datagram that a service got
firewalls: dict[str, Firewall] = {}
kept: dict[int, socket.socket] = {}
held: list[socket.socket] = []


def serve(ports: list[int]) -> None:
    for port in ports:
        tcp = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", port))
        for work in (_serve_tcp, _serve_udp):
            threading.Thread(target=work, args=(tcp if work is _serve_tcp else udp, port), daemon=True).start()


def _serve_tcp(server: socket.socket, port: int) -> None:
    while True:
        caller, address = server.accept()
        with caller:
            caller.sendall(f"{NAME} {address[0].removeprefix('::ffff:')} {port}".encode())


def _serve_udp(server: socket.socket, port: int) -> None:
    while True:
        data, address = server.recvfrom(2048)
        heard.append([address[0], data.decode()])
        try:
            server.sendto(f"{NAME} {address[0]} {port}".encode(), address)
        except OSError:
            continue  # to a source that was made up


def tcp(host: str, port: int, wait: float) -> str | None:
    try:
        with socket.create_connection((host, port), timeout=wait) as link:
            return link.recv(100).decode()
    except OSError:
        return None


def udp(host: str, port: int, wait: float, text: str = "hello", local: int = 0) -> str | None:
    """local: send from this port, and keep the socket for the next time."""
    link = kept.get(local) or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if local and local not in kept:
        link.bind(("0.0.0.0", local))
        kept[local] = link
    link.settimeout(wait)
    try:
        link.sendto(text.encode(), (host, port))
        return link.recvfrom(100)[0].decode()
    except OSError:
        return None
    finally:
        if not local:
            link.close()


def ping(host: str, wait: float) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as link:
        link.settimeout(wait)
        head = struct.pack("!BBHHH", 8, 0, 0, 77, 1)
        link.sendto(head[:2] + struct.pack("!H", _checksum(head)) + head[4:], (host, 0))
        try:
            while True:
                data, address = link.recvfrom(100)
                if address[0] == host and data[20] == 0:
                    return "pong"
        except OSError:
            return None


def spoof(source: str, host: str, port: int, text: str) -> None:
    """A datagram with a source of one's choice; the kernel fills in the rest of the IP header."""
    body = struct.pack("!HHHH", 4000, port, 8 + len(text), 0) + text.encode()
    addresses = socket.inet_aton(source) + socket.inet_aton(host)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, socket.IPPROTO_UDP, 0) + addresses
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as link:
        link.sendto(head + body, (host, 0))


def flood(host: str, port: int, count: int, protocol: str = "udp", first: int = 1024) -> float:
    """Send the first packet of many connections, each from a different port (ICMP: with a different id)."""
    kind = {"udp": socket.IPPROTO_UDP, "tcp": socket.IPPROTO_TCP, "icmp": socket.IPPROTO_ICMP}[protocol]
    begun = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, kind) as link:
        link.connect((host, 0))
        addresses = socket.inet_aton(link.getsockname()[0]) + socket.inet_aton(host)
        for number in range(first, first + count):
            if protocol == "udp":
                packet = struct.pack("!HHHH", number, port, 8, 0)
            elif protocol == "icmp":
                packet = _with_checksum(struct.pack("!BBHHH", 8, 0, 0, number, 1), 2)
            else:
                packet = struct.pack("!HHIIBBHHH", number, port, 1, 0, 0x50, 2, 8192, 0, 0)
                summed = _checksum(addresses + struct.pack("!HH", kind, len(packet)) + packet)
                packet = packet[:16] + struct.pack("!H", summed) + packet[18:]
            link.send(packet)
    return time.monotonic() - begun


def visits(host: str, port: int, count: int, wait: float) -> int:
    """TCP connections one after the other, each ended at once; how many got an answer before one got none."""
    for done in range(count):
        if tcp(host, port, wait) is None:
            return done
    return count


def hold(host: str, port: int, count: int, wait: float) -> int:
    """Open TCP connections side by side and keep them; how many there are."""

    def opened(_: int) -> None:
        try:
            held.append(socket.create_connection((host, port), timeout=wait))
        except OSError:
            return

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(opened, range(count)))
    return len(held)


def release() -> None:
    while held:
        held.pop().close()


def stream(host: str, port: int, count: int) -> None:
    """Datagrams of one connection without an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for number in range(count):
            link.sendto(f"stream {number}".encode(), (host, port))


def tracked(addresses: list[str]) -> dict[str, int]:
    """Connections that this namespace's kernel tracks, by address that opened or answers them."""
    raw = {socket.inet_aton(address): address for address in addresses}
    return {raw[address]: count for address, count in conntrack.count(raw).items()}


def forget_all() -> None:
    """End every connection."""
    _forget(lambda source: True)


def _with_checksum(packet: bytes, at: int) -> bytes:
    return packet[:at] + struct.pack("!H", _checksum(packet)) + packet[at + 2 :]


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return ~((total >> 16) + (total & 0xFFFF)) & 0xFFFF


def forge(senders: list[str], target: str, operation: int = 1, hardware: str = "") -> None:
    """ARP requests (or with operation 2 replies) over eth0, one from each of these addresses."""
    for sender in senders:
        _arp(operation, hardware, sender, target)


def who_has(target: str, sender: str, wait: float) -> str | None:
    """The hardware address that is answered to an ARP request."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ARP)) as link:
        link.bind(("eth0", _ETH_ARP))
        _arp(1, "", sender, target)
        deadline = time.monotonic() + wait
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            try:
                frame = link.recv(100)
            except TimeoutError:
                return None
            if frame[20:22] == b"\0\2" and frame[28:32] == socket.inet_aton(target):
                return frame[22:28].hex(":")
        return None


def solicit(target: str, count: int) -> None:
    """IPv6 neighbour solicitations to all nodes of eth0, each from a link-local address of its own."""
    everybody, sought = (socket.inet_pton(socket.AF_INET6, address) for address in ("ff02::1", target))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind(("eth0", 0))
        own = link.getsockname()[4]
        for number in range(1, count + 1):
            source = socket.inet_pton(socket.AF_INET6, f"fe80::bad:{number:x}")
            body = struct.pack("!BBHI", 135, 0, 0, 0) + sought + b"\1\1" + own
            summed = _checksum(source + everybody + struct.pack("!II", len(body), 58) + body)
            body = body[:2] + struct.pack("!H", summed) + body[4:]
            head = struct.pack("!IHBB", 6 << 28, len(body), 58, 255) + source + everybody
            link.send(bytes.fromhex("333300000001") + own + b"\x86\xdd" + head + body)


def _arp(operation: int, hardware: str, sender: str, target: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind(("eth0", 0))
        own = bytes.fromhex(hardware.replace(":", "")) or link.getsockname()[4]
        addresses = own + socket.inet_aton(sender) + bytes(6) + socket.inet_aton(target)
        head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        link.send(b"\xff" * 6 + own + struct.pack("!H", _ETH_ARP) + head + addresses)


def guard(sliver: str, address: str) -> bool:
    """Whether there was something to do, and is not any more."""
    before = neighbours.is_guarded(sliver)
    neighbours.guard(sliver, address)
    return not before and neighbours.is_guarded(sliver)


def guarded(sliver: str) -> bool:
    return neighbours.is_guarded(sliver)


def listen() -> list[list[str]]:
    return list(heard)


def _published(slivers: list[list[Any]]) -> list[Published]:
    return [
        Published(sliver, tag, address, PortBlock(*block), siblings)
        for sliver, tag, address, block, siblings in slivers
    ]


def storm(setting: str, slivers: list[list[Any]]) -> int:
    """Every sliver's own thread adds its row, then asks for the rules; how often the rows were read."""
    rows: list[Published] = []
    reads: list[int] = []

    def read() -> list[Published]:
        reads.append(len(rows))
        return list(rows)

    def create(one: Published) -> None:
        rows.append(one)
        firewalls[json.dumps([setting, {}])].replace(read)

    with ThreadPoolExecutor(len(slivers)) as pool:
        list(pool.map(create, _published(slivers)))
    return len(reads)


def firewall(do: str, setting: str = "auto", slivers: list[list[Any]] | None = None, **more: Any) -> Any:
    """do: replace (slivers, full), remove, check, backend, reason. An error's text is the answer to a failed one.

    network: settings that differ from those that the tests share.
    """
    network = more.get("network", {})
    key = json.dumps([setting, network])
    if key not in firewalls:
        given = {"firewall": setting, "denied": ("169.254.0.0/16", "203.0.113.0/24"), **network}
        given["untracked"] = tuple(network.get("untracked", ()))
        firewalls[key] = Firewall(NetworkConfig(**given))
    one = firewalls[key]
    try:
        if do == "replace":
            return one.replace(_published(slivers or []), full=bool(more.get("full")))
        answer = getattr(one, do)
        return answer() if callable(answer) else answer
    except SlicemgrError as error:
        return f"{type(error).__name__}: {error}"


def remember() -> None:
    """The weakened control: connections of an address that has a new owner are not ended."""
    conntrack.forget = lambda meant: 0


def forget() -> None:
    conntrack.forget = _forget


_forget = conntrack.forget


def doubt(fault: str) -> None:
    """Take this for what the trial of python-iptables finds."""
    firewall_trial.fault = lambda network: fault  # type: ignore[assignment]


def lock(path: str, timeout: float) -> None:
    """Use another lock file, and wait no longer than this."""
    from pathlib import Path

    from slicemgr.drivers.network import firewall_legacy

    firewall_legacy.LOCK, firewall_legacy.LOCK_TIMEOUT = Path(path), timeout


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__: task
    for task in (
        serve,
        tcp,
        udp,
        ping,
        spoof,
        listen,
        forge,
        who_has,
        solicit,
        guard,
        guarded,
        flood,
        visits,
        hold,
        release,
        stream,
        tracked,
        forget_all,
        firewall,
        remember,
        forget,
        lock,
        doubt,
        storm,
    )
}


def main() -> None:
    print(json.dumps("ready"), flush=True)
    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            running = [pool.submit(TASKS[task.pop("task")], **task) for task in json.loads(line)]
            print(json.dumps([one.result() for one in running]), flush=True)


if __name__ == "__main__":
    main()

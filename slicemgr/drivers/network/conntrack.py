"""Delete tracked connections of an address, so that its next owner does not inherit them.

This uses ctnetlink (linux/netfilter/nfnetlink_conntrack.h): a dump of the network namespace's IPv4 connections, then
one delete request per match. The dump takes about 10 ms for 250,000 hash buckets, even if they are empty.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv4Address
from pathlib import Path

from slicemgr.drivers.kernel import netlink

log = logging.getLogger(__name__)

_NETLINK_NETFILTER = 12
_GET, _DELETE = 0x0101, 0x0102  # IPCTNL_MSG_CT_GET and _DELETE of NFNL_SUBSYS_CTNETLINK
_TUPLE_ORIG, _TUPLE_REPLY, _ZONE = 1, 2, 18
_TUPLE_IP, _IP_V4_SRC = 1, 1
_TIMEOUT = 10.0  # seconds
_TOTAL = Path("/proc/sys/net/netfilter/nf_conntrack_count")

_Attributes = dict[int, bytes]


def forget(meant: Callable[[IPv4Address], bool]) -> int:
    """Delete every IPv4 connection from or to an address for which `meant` is true; the number deleted.

    An error of the kernel is logged: the connections then expire by their own timeouts.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as link:
            link.settimeout(_TIMEOUT)
            link.bind((0, 0))
            return _forget(link, meant)
    except OSError as error:
        log.warning("cannot end old connections: %s", error)
        return 0


def count(addresses: Collection[bytes]) -> dict[bytes, int]:
    """The number of IPv4 connections from or to each address (4 bytes). Raises OSError.

    It takes roughly 10 µs per connection that the node tracks; `total` returns their number.
    """
    found = dict.fromkeys(addresses, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as link:
        link.settimeout(_TIMEOUT)
        link.bind((0, 0))
        for attributes in _dump(link):
            for address in {_source(attributes[which]) for which in (_TUPLE_ORIG, _TUPLE_REPLY)}:
                if address in found:
                    found[address] += 1
    return found


def total() -> int | None:
    """The number of connections that the kernel tracks; None if it is not available."""
    try:
        return int(_TOTAL.read_text())
    except (OSError, ValueError):
        return None


def _forget(link: socket.socket, meant: Callable[[IPv4Address], bool]) -> int:
    verdicts: dict[bytes, bool] = {b"": False}
    found: list[bytes] = []
    for attributes in _dump(link):
        for which in (_TUPLE_ORIG, _TUPLE_REPLY):
            source = _source(attributes[which])
            if source not in verdicts:
                verdicts[source] = meant(IPv4Address(source))
            if verdicts[source]:
                zone = attributes.get(_ZONE)
                original = netlink.attribute(_TUPLE_ORIG | netlink.NESTED, attributes[_TUPLE_ORIG])
                found.append(original + (netlink.attribute(_ZONE, zone) if zone else b""))
                break
    for connection in found:
        _send(link, _DELETE, netlink.ACK, connection)
        for _ in _answers(link):
            pass
    return len(found)


def _dump(link: socket.socket) -> Iterator[_Attributes]:
    _send(link, _GET, netlink.DUMP, b"")
    for payload in _answers(link):
        attributes = dict(netlink.attributes(payload[4:]))
        if _TUPLE_ORIG in attributes and _TUPLE_REPLY in attributes:
            yield attributes


def _send(link: socket.socket, kind: int, flags: int, attributes: bytes) -> None:
    link.send(netlink.message(kind, flags, struct.pack("=BBH", socket.AF_INET, 0, 0) + attributes))


def _answers(link: socket.socket) -> Iterator[bytes]:
    """The payloads of one response. Raises OSError, but not for a connection that has ended in the meantime."""
    while True:
        for kind, payload in netlink.messages(link.recv(1 << 17)):
            if kind == netlink.DONE:
                return
            if kind == netlink.ERROR:
                code = netlink.error(payload)
                if code not in (0, errno.ENOENT):
                    raise OSError(code, "ctnetlink refused")
                return
            yield payload


def _source(pair: bytes) -> bytes:
    """The source address of a connection tuple."""
    addresses = dict(netlink.attributes(pair)).get(_TUPLE_IP, b"")
    return dict(netlink.attributes(addresses)).get(_IP_V4_SRC, b"")

"""Links by rtnetlink, linux/if_link.h: the settings of one link for IPv4 and IPv6, and the removal of several.

The files below /proc/sys/net have the same settings. But the kernel keeps the name of a directory there once for each
network namespace, and a lookup compares them all: on a node with 1000 slivers it takes half a millisecond.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicemgr.drivers.kernel import netlink
from slicemgr.errors import Failed

# linux/ip.h IPV4_DEVCONF_*, and linux/ipv6.h DEVCONF_*
RP_FILTER, ARP_ACCEPT = 8, 21
DISABLE_IPV6 = 26
_NEW, _DELETE, _GET, _SET = 16, 17, 18, 19  # RTM_*LINK
_NAME, _FAMILIES, _GROUP, _WITHOUT = 3, 26, 27, 29  # IFLA_IFNAME, IFLA_AF_SPEC, IFLA_GROUP, IFLA_EXT_MASK
_STATISTICS = struct.pack("=I", 1 << 3)  # RTEXT_FILTER_SKIP_STATS
_CONF4, _CONF6 = 1, 2  # IFLA_INET_CONF, IFLA_INET6_CONF
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_VALUE = struct.Struct("=I")
_BUFFER = 1 << 16
_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Settings:
    """The values by their numbers above. ipv6: empty if the link has no IPv6."""

    ipv4: Mapping[int, int]
    ipv6: Mapping[int, int]


def read(link: str) -> Settings:
    """The settings of a link in the caller's network namespace. Raises OSError, ENODEV if there is no such link."""
    answer = _ask(_GET, 0, link, netlink.attribute(_WITHOUT, _STATISTICS))
    found = dict(netlink.attributes(answer[_LINK.size :]))
    families = dict(netlink.attributes(found.get(_FAMILIES, b"")))
    ipv4 = dict(netlink.attributes(families.get(socket.AF_INET, b""))).get(_CONF4, b"")
    ipv6 = dict(netlink.attributes(families.get(socket.AF_INET6, b""))).get(_CONF6, b"")
    return Settings(  # the kernel numbers those of IPv4 from 1
        {number + 1: value for number, (value,) in enumerate(_VALUE.iter_unpack(ipv4))},
        {number: value for number, (value,) in enumerate(_VALUE.iter_unpack(ipv6))},
    )


def write(link: str, ipv4: Mapping[int, int]) -> None:
    """Change settings of IPv4; the kernel lets no program change `DISABLE_IPV6` like this. Raises OSError."""
    values = b"".join(netlink.attribute(number, _VALUE.pack(value)) for number, value in ipv4.items())
    conf = netlink.attribute(socket.AF_INET, netlink.attribute(_CONF4, values))
    _ask(_SET, netlink.ACK, link, netlink.attribute(_FAMILIES, conf))


def remove(links: Collection[str]) -> None:
    """Remove virtual links and the other ends of them; those that do not exist are left out. Raises Failed.

    The kernel removes them as a group, because it waits as long for one of them as for all, some 20 ms.
    """
    group = netlink.attribute(_GROUP, _VALUE.pack(1 + secrets.randbelow((1 << 31) - 1)))
    try:
        # sysfs, unlike rtnetlink, does not wait for changes of other links.
        if [link for link in links if _exists(link) and _done(_SET, _named(link) + group)]:
            _done(_DELETE, group)
    except OSError as error:
        raise Failed(f"the kernel does not remove the links {', '.join(links)}: {error}") from error


def _exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()


def _done(kind: int, attributes: bytes) -> bool:
    """Whether the kernel has made a change; False if there is no such link."""
    try:
        _send(kind, netlink.ACK, attributes)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return False
    return True


def _ask(kind: int, flags: int, link: str, attributes: bytes) -> bytes:
    """The payload of the answer about a link; b"" for an acknowledgement."""
    return _send(kind, flags, _named(link) + attributes)


def _named(link: str) -> bytes:
    return netlink.attribute(_NAME, link.encode() + b"\0")


def _send(kind: int, flags: int, attributes: bytes) -> bytes:
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attributes
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(netlink.message(kind, flags, body))
        for answered, payload in netlink.messages(kernel.recv(_BUFFER)):
            if answered == netlink.ERROR and (code := netlink.error(payload)):
                raise OSError(code, os.strerror(code))
            if answered == _NEW:
                return payload
        return b""

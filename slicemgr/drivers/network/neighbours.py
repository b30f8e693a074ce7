"""Fix the node's neighbour entry for each sliver's link: one permanent neighbour that no message can change.

The kernel has one neighbour table for all network namespaces, and adds an entry for each sender of an ARP request that
is routed back by the same link. So a link gets one permanent entry, which messages cannot change and which counts
against no limit. Reverse path filtering makes the kernel ignore requests with other senders. The node still answers
requests for the gateway, so the network inside the sliver can restart at any time.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from pathlib import Path

from slicemgr import names
from slicemgr.drivers.network import links
from slicemgr.drivers.network.links import ARP_ACCEPT, DISABLE_IPV6, RP_FILTER
from slicemgr.errors import Failed

_IPV4 = {RP_FILTER: 1, ARP_ACCEPT: 0}
_IPV6 = Path("/proc/sys/net/ipv6/conf")  # of the caller's network namespace; IPv6 has a global neighbour table as well
_GET_PEER, _GET_ARP, _SET_ARP = 0x8917, 0x8954, 0x8955  # SIOCGIFDSTADDR, SIOCGARP, SIOCSARP: linux/sockios.h
_ETHERNET = 1  # ARPHRD_ETHER: linux/if_arp.h
_COMPLETE, _PERMANENT = 0x02, 0x04  # ATF_COM, ATF_PERM
_REQUEST = struct.Struct("=H2x4s8xH14sI16x16s")  # struct arpreq: address, hardware address, flags, netmask, device
_INTERFACE = struct.Struct("=16sH2x4s16x")  # struct ifreq with an address
_NO_LINK = (errno.ENODEV, errno.ENOENT)  # the tenant may remove the link from inside


def guard(sliver: str, address: str) -> None:
    """Protect the sliver's link; may be repeated. Without a link there is no effect. Raises Failed."""
    link = names.link(sliver)
    try:
        found = links.read(link)
        if not _fits_ipv4(found):
            links.write(link, _IPV4)
        if not _fits_ipv6(found):
            (_IPV6 / link / "disable_ipv6").write_text("1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SET_ARP, _entry(link, socket.inet_aton(address), _mac(sliver)))
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise Failed(f"cannot set the one neighbour of {link}: {error}") from error


def is_guarded(sliver: str) -> bool:
    """Whether `guard` would change nothing, for the peer address of the link."""
    link = names.link(sliver)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            reply = fcntl.ioctl(control, _GET_PEER, _INTERFACE.pack(link.encode(), socket.AF_INET, bytes(4)))
            peer = _INTERFACE.unpack(reply)[2]
            reply = fcntl.ioctl(control, _GET_ARP, _entry(link, peer, bytes(6)))
            mac, flags = _REQUEST.unpack(reply)[3:5]
        permanent = bool(flags & _PERMANENT) and mac[:6] == _mac(sliver)
        found = links.read(link)
        return permanent and _fits_ipv4(found) and _fits_ipv6(found)
    except OSError as error:
        return error.errno in (*_NO_LINK, errno.EADDRNOTAVAIL)  # a link without an address has no neighbours


def _fits_ipv4(found: links.Settings) -> bool:
    return all(found.ipv4.get(number) == value for number, value in _IPV4.items())


def _fits_ipv6(found: links.Settings) -> bool:
    """Without IPv6, in the kernel or on the link, there is nothing to disable."""
    return found.ipv6.get(DISABLE_IPV6, 1) == 1


def _entry(link: str, address: bytes, mac: bytes) -> bytes:
    flags = _COMPLETE | _PERMANENT
    return _REQUEST.pack(socket.AF_INET, address, _ETHERNET, mac, flags, link.encode())


def _mac(sliver: str) -> bytes:
    return bytes.fromhex(names.mac(sliver).replace(":", ""))

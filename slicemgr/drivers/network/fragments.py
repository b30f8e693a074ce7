"""Bounds the fragments that each sliver can have waiting in the node's own network.

Connection tracking puts packets together before any rule of iptables sees them, and what waits for its rest shares one
threshold of the node's: a single sliver could fill it, and everybody's fragments would be dropped. So a chain of
nftables comes before it. It counts packets, for a small one costs as much as a large one, by the link that they come
from, for source addresses can be forged. The threshold and the time limit that fit are in tools/units/90-slicemgr.conf.
"""

from __future__ import annotations

from slicemgr import names
from slicemgr.drivers import command
from slicemgr.errors import Failed

TABLE = "slicemgr-fragments"
PER_SECOND = 1000  # fragments from one sliver: 11 Mbit/s of large packets
BURST = 2000
_PRIORITY = -450  # connection tracking's is -400


def install() -> None:
    """Write the chain anew. Raises Failed with the reason, where nftables is not there."""
    try:
        command.run(["nft", "-f", "-"], input=rules().encode(), timeout=10)
    except command.CommandFailed as error:
        message = f"slivers share the node's memory for fragments: {error.stderr.strip()}"
        raise Failed(message, hint="apt-get install nftables") from error


def remove() -> None:
    """Take the chain away. Raises Failed."""
    if is_installed():
        try:
            command.run(["nft", "delete", "table", "inet", TABLE], timeout=10)
        except command.CommandFailed as error:
            raise Failed(f"cannot remove the nftables table {TABLE}: {error.stderr.strip()}") from error


def is_installed() -> bool:
    try:
        command.run(["nft", "list", "chain", "inet", TABLE, "before"], timeout=10)
    except command.CommandFailed:
        return False
    return True


def rules() -> str:
    """What `nft -f` reads. IPv6 is not routed for slivers: its fragments have nowhere to go. Pure."""
    return f"""\
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
    set links {{
        type iface_index
        size 65535
        flags dynamic,timeout
        timeout 1m
    }}
    chain before {{
        type filter hook prerouting priority {_PRIORITY}; policy accept;
        iifname != "{names.MARK}*" accept
        exthdr frag exists drop
        ip frag-off & 0x3fff != 0 update @links {{ iif limit rate over {PER_SECOND}/second burst {BURST} packets }} drop
    }}
}}
"""

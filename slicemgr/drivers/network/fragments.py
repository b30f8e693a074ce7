"""Limit the incomplete fragments that each sliver can have in the node's own network.

Connection tracking reassembles packets before any iptables rule applies, and all incomplete packets of the node share
one threshold: a single sliver could fill it, and the fragments of all others would be dropped. So a chain of nftables
runs before connection tracking. It limits the number of fragments, because a small one costs as much as a large one,
and counts per incoming link, because source addresses can be forged. The matching threshold and timeout are in
tools/units/90-slicemgr.conf.
"""

from __future__ import annotations

from slicemgr import names
from slicemgr.drivers import command
from slicemgr.errors import Failed

TABLE = "slicemgr-fragments"
PER_SECOND = 1000  # fragments per second and sliver: 11 Mbit/s of large packets
BURST = 2000
_PRIORITY = -450  # connection tracking has -400


def install() -> None:
    """Write the chain, in place of an existing one. Raises Failed, also if nftables is not installed."""
    try:
        command.run(["nft", "-f", "-"], input=rules().encode(), timeout=10)
    except command.CommandFailed as error:
        message = f"slivers share the node's memory for fragments: {error.stderr.strip()}"
        raise Failed(message, hint="apt-get install nftables") from error


def remove() -> None:
    """Remove the chain. Raises Failed."""
    if is_installed():
        try:
            command.run(["nft", "delete", "table", "inet", TABLE], timeout=10)
        except command.CommandFailed as error:
            raise Failed(f"cannot remove the nftables table {TABLE}: {error.stderr.strip()}") from error


def is_installed() -> bool:
    """Whether the chain exists; False if nftables is not installed."""
    try:
        command.run(["nft", "list", "chain", "inet", TABLE, "before"], timeout=10)
    except command.CommandFailed:
        return False
    return True


def rules() -> str:
    """The input of `nft -f`. All IPv6 fragments are dropped, since IPv6 is not routed for slivers. Pure."""
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

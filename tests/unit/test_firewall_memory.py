"""python-iptables writes only into memory that it owns, or else another object of the agent is overwritten."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import ctypes
from slicemgr.config import NetworkConfig
from slicemgr.drivers.network import firewall_legacy
from slicemgr.drivers.network.firewall_rules import tables
from slicemgr.drivers.network.firewall_trial import examples

others = []
library = firewall_legacy.iptc.Match
reset = library.reset

def reset_among_others(self):
    reset(self)
    if size := self._module.udata_size:  # others take the memory that was freed last
        others.extend((ctypes.c_ubyte * size)() for _ in range(1000))

library.reset = reset_among_others
{change}
for table in tables(examples(), NetworkConfig()):
    for chain in table.chains.values():
        for rule in chain:
            firewall_legacy._encode(table.ipv6, rule)
print(len(others) > 0, any(any(one) for one in others))
"""


def _encode_all(change: str = "") -> tuple[bool, bool]:
    """Whether a match used scratch space, and whether other objects were overwritten."""
    program = [sys.executable, "-I", "-W", "ignore", "-c", PROBE.format(change=change)]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60)
    used, overwritten = done.stdout.split()
    return used == "True", overwritten == "True"


def test_matches_write_no_memory_of_other_objects() -> None:
    assert _encode_all() == (True, False)


def test_the_match_of_the_library_itself_does() -> None:
    assert _encode_all("firewall_legacy._Match = library") == (True, True)

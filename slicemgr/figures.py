"""The names of measured values, and the facts of a sliver before and after a sample.

Two values describe a sliver's memory, both in bytes. charged: all memory charged to its control group, page cache
included. working: the working set, which is that without the page cache that was not used lately. Two say what a sliver
lost of it. reclaimed: bytes that the node took back (see policy/memory.py). reread: bytes that the sliver read again
after the node or the kernel had taken them. pressure: microseconds in which a program waited for memory (PSI, `some`);
of slivers only with control groups of version 2, else 0.
"""

from __future__ import annotations

from typing import NamedTuple

RAW, MINUTES, HOURS = 0, 300, 3600  # seconds of a resolution
COUNTED = (
    *("net_in", "net_out", "net_in_packets", "net_out_packets"),
    *("io_read", "io_written", "io_reads", "io_writes", "reclaimed", "reread", "pressure"),
)


class Known(NamedTuple):
    """The facts of a sliver that the recorder needs.

    inherited: bytes of a clone's initial content. kept: bytes of its snapshots. Both count against its disk limit.
    """

    serial: int
    id: str
    project: str
    type: str
    address: str
    inherited: int = 0
    kept: int = 0


class Usage(NamedTuple):
    """The resource use of a sliver in the latest sample, in bytes; None: unknown, or it does not run.

    disk: as its limit counts it. guest: memory in use inside a virtual machine.
    """

    serial: int
    working: int | None
    charged: int | None
    disk: int | None
    guest: int | None

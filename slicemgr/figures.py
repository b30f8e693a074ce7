"""What is measured: what the figures are called, and what is known of a sliver before and after a sample.

Of memory there are two figures of a sliver, both in bytes. charged: all that its control group is charged with, page
cache included. working: the working set, which is that less the page cache that nobody used lately.
"""

from __future__ import annotations

from typing import NamedTuple

RAW, MINUTES, HOURS = 0, 300, 3600  # seconds of a resolution
COUNTED = ("net_in", "net_out", "net_in_packets", "net_out_packets", "io_read", "io_written", "io_reads", "io_writes")


class Known(NamedTuple):
    """What the recorder needs to know of a sliver.

    inherited: bytes that a clone began with. kept: bytes of its snapshots. Both count against its disk limit.
    """

    serial: int
    id: str
    project: str
    kind: str
    address: str
    inherited: int = 0
    kept: int = 0


class Usage(NamedTuple):
    """What a sliver uses as of the latest sample, in bytes; None: not known, or it does not run.

    disk: as its limit counts it. guest: what a virtual machine says is used inside.
    """

    serial: int
    working: int | None
    charged: int | None
    disk: int | None
    guest: int | None

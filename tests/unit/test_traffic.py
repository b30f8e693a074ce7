"""The rates of a link as text for `tc -batch`."""

from __future__ import annotations

import re

import pytest

from slicemgr.drivers.network import traffic

SLIVER = "abcdefgh-7"
TO = "qdisc replace dev smabcdefgh-7 root tbf rate 100000000bit burst 125000b limit 750000b\n"
FROM = """\
qdisc replace dev smiabcdefgh-7 root tbf rate 64000bit burst 3200b limit 9600b
qdisc replace dev smabcdefgh-7 ingress
filter replace dev smabcdefgh-7 ingress protocol all pref 1 handle 800::800 u32 match u32 0 0 \
action mirred egress redirect dev smiabcdefgh-7
"""
TO_LIFTED = "qdisc replace dev smabcdefgh-7 root pfifo\nqdisc del dev smabcdefgh-7 root\n"
FROM_LIFTED = "qdisc replace dev smabcdefgh-7 ingress\nqdisc del dev smabcdefgh-7 ingress\n"


@pytest.mark.parametrize(
    ("to_sliver", "from_sliver", "lines"),
    [
        (10**8, 64000, TO + FROM),
        (10**8, None, TO + FROM_LIFTED),
        (None, 64000, TO_LIFTED + FROM),
        (None, None, TO_LIFTED + FROM_LIFTED),
    ],
)
def test_each_direction_by_itself(to_sliver: int | None, from_sliver: int | None, lines: str) -> None:
    assert traffic.batch(SLIVER, to_sliver, from_sliver) == lines


@pytest.mark.parametrize("rate", [64_000, 10**6, 10**7, 10**8, 10**9, 10**10, 10**11])
def test_what_may_wait_is_gone_soon_and_a_burst_is_short(rate: int) -> None:
    found = re.search(r"burst (\d+)b limit (\d+)b", traffic.batch(SLIVER, rate, None))
    assert found is not None
    burst, limit = map(int, found.groups())
    assert burst >= max(2 * 1514, rate / 8 / 250), "two frames, and what a tick of 4 ms brings"
    assert 4 * 1514 < limit - burst < 1 << 30, "TCP needs a few packets; the kernel counts in 32 bits"
    assert (limit - burst) * 8 / rate <= 0.05 or limit == 9600

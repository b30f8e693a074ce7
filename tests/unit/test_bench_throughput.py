"""bench throughput: iperf3's reports and what is made of them."""

from __future__ import annotations

import pytest

from slicemgr.bench import throughput

REPORT = b'{"start": {}, "end": {"sum_sent": {"bits_per_second": 9}, "sum_received": {"bits_per_second": 7.5}}}'
UNREACHED = b'{"start": {}, "intervals": [], "end": {}, "error": "error - unable to connect to server"}'


def test_what_arrived_counts() -> None:
    assert throughput.arrived(REPORT) == 7.5
    assert throughput.complaint(REPORT) == ""


@pytest.mark.parametrize("report", [UNREACHED, b"", b"[]", b"iperf3: error", b'{"end": {"sum_received": {}}}'])
def test_a_report_without_a_rate(report: bytes) -> None:
    assert throughput.arrived(report) is None
    assert throughput.complaint(report) == ("unable to connect to server" if report == UNREACHED else "")


def test_ratios_are_made_of_the_same_round() -> None:
    rates = {("plain", "in"): [10.0, 20.0, 40.0], ("lxc", "in"): [9.0, 16.0, 38.0]}
    plain, lxc = throughput.rows(rates)
    assert plain == {"path": "plain", "direction": "in", "median": 20.0, "least": 10.0, "most": 40.0, "ratio": None}
    assert lxc == {"path": "lxc", "direction": "in", "median": 16.0, "least": 9.0, "most": 38.0, "ratio": 0.9}

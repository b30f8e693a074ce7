"""The report of bench throughput: the paper's table, talkers, aims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slicemgr.bench.frame import folder
from slicemgr.bench.report import pages, throughput


def _run(path: Path, share: float = 0.97, *, most: int = 200, lost: float = 0.0, unfair: bool = False) -> folder.Run:
    """share: of vanilla that lxc has. lost: of the sum by the most talkers. unfair: half of them have nothing much."""
    steps: dict[str, Any] = {}

    def add(link: str, way: str, count: int, total: float) -> None:
        rates = [total / (count or 1)] * (count or 1)
        if unfair and count == most:
            rates = [rate * (1.9 if place % 2 else 0.1) for place, rate in enumerate(rates)]
        pairs = [_pair(rate) for rate in rates]
        head = {"link": link, "repeat": 1, "direction": "in", "way": way, "count": count}
        steps[f"{link}/{way}*{count}"] = {"title": f"{way} {link}", "data": {**head, "pairs": pairs}}

    for link, plain in (("unlimited", 20e9), ("1Gbit", 940e6)):
        add(link, "vanilla", 0, plain)
        add(link, "lxc", 0, plain * share)
        add(link, "kvm", 0, plain * 0.6)
        for count in (1, 10, most):
            add(link, "lxc", count, plain * share * (1 - (lost if count == most else 0)))
    return folder.Run(path, {"experiment": "throughput", "parameters": {"peer": "peer.json"}}, steps)


def _pair(rate: float) -> dict[str, Any]:
    samples = [round(rate * factor) for factor in (0.99, 1.0, 1.01)]
    return {"samples": samples, "arrived": round(rate), "retransmits": 1, "cpu": {"host": 30.0, "remote": 20.0}}


def test_the_papers_table_beside_ours(tmp_path: Path) -> None:
    content = pages.content(_run(tmp_path))
    table = next(one for one in content.tables if "held to 1Gbit" in one.title and "table 2" in one.title)
    names = [one.name for one in table.columns]
    rows: dict[str, dict[str, Any]] = {str(row[0]): dict(zip(names, row, strict=True)) for row in table.rows}
    assert list(rows) == ["Vanilla Linux", "PlanetLab (the paper's only)", "lxc (LXC)", "kvm (KVM (virtio))"]
    lxc = rows["lxc (LXC)"]
    assert lxc["average"] == pytest.approx(911.8, abs=0.1) and lxc["of vanilla"] == pytest.approx(97)
    assert (lxc["minimum"], lxc["maximum"]) == (pytest.approx(902.7, abs=0.1), pytest.approx(920.9, abs=0.1))
    assert [rows["kvm (KVM (virtio))"][f"the paper: {one}"] for one in ("average", "minimum", "maximum")] == [
        604,
        492,
        702,
    ]
    assert rows["PlanetLab (the paper's only)"]["average"] is None
    assert lxc["low"] < lxc["average"] < lxc["high"]
    assert "lxc 912 Mbit/s (97.0 % of vanilla)" in content.outcome[1]


@pytest.mark.parametrize(
    ("how", "reached"),
    [
        ({}, [True, True, True, False, True, True]),
        ({"share": 0.995}, [True, True, True, True, True, True]),
        ({"share": 0.9}, [False, True, True, False, True, True]),
        ({"share": 0.995, "lost": 0.06}, [True, False, True, True, False, True]),
        ({"share": 0.995, "unfair": True}, [True, True, False, True, True, False]),
        ({"share": 0.995, "most": 50}, [True, None, None, True, None, None]),
    ],
)
def test_aims(tmp_path: Path, how: dict[str, Any], reached: list[bool | None]) -> None:
    assert [one.reached for one in pages.content(_run(tmp_path, **how)).aims] == reached


@pytest.mark.usefixtures("full_plots")
def test_pages_are_written_and_compared(tmp_path: Path) -> None:
    run, older = _run(tmp_path / "new"), _run(tmp_path / "old", share=0.5)
    run.folder.mkdir()
    written = {one.name for one in pages.write(run, older)}
    assert {"throughput-unlimited.png", "talkers-1gbit.png", "data.csv"} <= written
    assert "significantly better" in (run.folder / "report.html").read_text()


def test_nothing_measured_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path)
    with pytest.raises(ValueError, match="no measurement"):
        throughput.content(folder.Run(run.folder, run.info, {}))

"""The report of a run of `bench peers`, and whether its aim is reached, not reached, or undetermined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from peer_runs import COSTS, made

from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import pages, plots
from slicemgr.bench.report.content import Aim, Content

Golden = Callable[[str, str], None]
SLOW = {**COSTS, "slicemgr": (0.3, 0.006, 4.9, 280.0)}
LARGE = {**COSTS, "slicemgr": (0.08, 0.006, 8.0, 280.0)}
PLAIN_LXC = {**COSTS, "lxc": (0.1, 0.05, 3.0, 250.0)}


def _aim(run: Run) -> Aim:
    return pages.content(run).aims[0]


def test_a_run_beside_an_earlier_one(tmp_path: Path, golden: Golden) -> None:
    run = made(tmp_path / "new", stopped="plain LXC: lxc-start --name: exit status 1: no bridge")
    older = made(tmp_path / "old", costs=LARGE)
    golden("bench/peers.md", pages.markdown(pages.context(run, pages.content(run), older, pages.content(older))))


def test_the_aim(tmp_path: Path) -> None:
    reached = _aim(made(tmp_path / "reached"))
    assert (
        reached.reached is True
        and reached.measured == "0.100 of its time and 0.132 of its memory, 200 slices, 200 by Docker, 20 ports"
    )
    for name, costs in (("slow", SLOW), ("large", LARGE)):
        assert _aim(made(tmp_path / name, costs=costs)).reached is False


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("few", {"count": 50}, "50 slices, 50 by Docker"),
        ("ports", {"ports": 5}, "5 ports"),
        ("docker", {"costs": {"slicemgr": COSTS["slicemgr"]}}, "Docker was not measured"),
        ("slicemgr", {"costs": {"docker": COSTS["docker"]}}, "slicemgr was not measured"),
        ("noise", {"costs": {**COSTS, "docker": (0.8, 2.2, -1.0, 420.0)}}, "lost in noise"),
    ],
)
def test_where_a_run_cannot_tell(name: str, more: dict[str, object], says: str, tmp_path: Path) -> None:
    aim = _aim(made(tmp_path / name, **more))  # type: ignore[arg-type]
    assert aim.reached is None and says in aim.measured


def test_the_rates_and_the_work_of_a_byte(tmp_path: Path) -> None:
    def aims(content: Content) -> list[tuple[bool | None, str]]:
        return [(one.reached, one.measured) for one in content.aims[1:]]

    light, heavy = (
        pages.content(made(tmp_path / name, costs=PLAIN_LXC, work=work))
        for name, work in (("light", 1.4), ("heavy", 1.6))
    )
    assert aims(light) == [(True, "0.97 in, 0.90 out"), (True, "0.93 × in, 1.00 × out")]
    assert aims(heavy)[1] == (False, "1.07 × in, 1.00 × out")
    alone = pages.content(made(tmp_path / "alone"))
    assert aims(alone)[1] == (None, "plain LXC was not measured")


def test_a_run_of_a_version_that_did_not_measure_the_work_is_reported(tmp_path: Path) -> None:
    content = pages.content(made(tmp_path / "run", costs=PLAIN_LXC, work=None))
    assert content.aims[2].reached is None and content.aims[2].measured == "not measured"
    assert [column.name for column in content.tables[0].columns][-1] == "of a byte out"
    assert {row[-1] for row in content.tables[0].rows} == {None}


def test_what_a_peer_does_better_is_said(tmp_path: Path) -> None:
    said = " ".join(pages.content(made(tmp_path / "run")).outcome)
    assert "Docker, 200 containers, same run: 10.00 × slicemgr's time of a create, 7.55 × its memory" in said
    assert (
        "slicemgr is behind Podman, crun in memory, disk." in said and "Not measured, or not to the end: LXD." in said
    )


@pytest.mark.usefixtures("full_plots")
def test_a_figure_that_is_lost_in_noise_is_drawn(tmp_path: Path) -> None:
    costs = {"slicemgr": (0.08, 0.006, -1.0, 280.0)}
    for one in pages.content(made(tmp_path / "run", costs=costs, repeat=1)).plots:
        assert plots.svg(one).startswith("<svg")


def test_nothing_is_reported_of_nothing(tmp_path: Path) -> None:
    run = made(tmp_path / "run", costs={})
    with pytest.raises(Exception, match="nothing to report: no system's turn is finished yet"):
        pages.content(run)

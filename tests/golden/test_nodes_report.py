"""The report of a run of `bench nodes`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node_runs import made

from slicemgr.bench.report import pages

Golden = Callable[[str, str], None]


def test_a_run_beside_an_earlier_one(tmp_path: Path, golden: Golden) -> None:
    run = made(tmp_path / "new")
    older = made(tmp_path / "old", nodes={"n1": (0.09, 0.0005), "n2": (0.7, 0.1)})
    golden("bench/nodes.md", pages.markdown(pages.context(run, pages.content(run), older, pages.content(older))))

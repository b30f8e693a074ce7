"""The report of a run, as a page and as Markdown, but for the pictures: those are matplotlib's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scale_runs import MIB, made

from slicemgr.bench.report import pages

Golden = Callable[[str, str], None]


def test_a_run_of_containers_beside_an_earlier_one(tmp_path: Path, golden: Golden) -> None:
    run = made(tmp_path / "new", to=60, step=20, each=6.5 * MIB)
    older = made(tmp_path / "old", to=60, step=20, seconds=0.13)
    context = pages.context(run, pages.content(run), older, pages.content(older))
    svgs = {one.name: f"<svg><!-- {one.name} --></svg>" for one in context["content"].plots}
    golden("bench/lxc.html", pages.html(context, svgs))
    golden("bench/lxc.md", pages.markdown(context))


def test_a_run_of_machines_that_the_guard_stopped(tmp_path: Path, golden: Golden) -> None:
    run = made(tmp_path / "run", sliver_type="kvm", to=120, step=10, each=320 * MIB, repeat=1, seconds=7)
    golden("bench/kvm.md", pages.markdown(pages.context(run, pages.content(run), None, None)))

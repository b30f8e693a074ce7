"""Reports: results of scale's measurements, plots in a page, comparison with an earlier run."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from scale_runs import GIB, KIB, MIB, made

from slicemgr.bench.frame import folder
from slicemgr.bench.report import compare, pages, plots, scale
from slicemgr.bench.report.content import Axis, Column, Content, Mark, Metric, Plot, Series, Table
from slicemgr.errors import Code, Refused

LINES = Plot(
    "lines",
    "Lines & <marks>",
    Axis("n", least=0),
    Axis("memory", "%", 0, 100),
    [Series("left", [0, 5, 10], [1.0, None, 3.0], [0.5, None, 2.0], [1.5, None, 4.0])],
    marks=[Mark(5, "the paper"), Mark(50, "a limit", y=True)],
)
BARS = Plot(
    "bars",
    "Bars",
    Axis("runtime"),
    Axis("time", "s", log=True),
    [Series("create", (), [1.0, 2.0], [0.9, 1.9], [1.1, 2.1]), Series("delete", (), [3.0, None])],
    groups=["one", "two"],
)
LINK = re.compile(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!["']?#)|@import|<script|<link|<iframe""")


def test_what_a_sliver_costs(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    costs = scale._costs(scale.points(run))
    assert costs.memory == pytest.approx([5.005 * MIB, 5.01 * MIB], rel=1e-4)
    assert costs.disk == pytest.approx([280 * KIB] * 2) and costs.most == 200
    # medians: the 25th and the 175th, each slower by a thousandth of its number, and 3 ms
    assert costs.late == pytest.approx([0.12045 / 0.10545] * 2, rel=0.01)


def test_a_run_of_an_older_version_reports_the_same(tmp_path: Path) -> None:
    old = made(tmp_path / "old", memory=("memory",))
    new = made(tmp_path / "new", memory=("memory", "working"))
    assert scale.points(old) == scale.points(new)
    assert scale.points(new)[-1].own_memory is not None
    assert pages.content(old) == pages.content(new)


def test_aims_of_a_thousand_are_told_by_a_thousand_only(tmp_path: Path) -> None:
    few = pages.content(made(tmp_path / "few"))
    many = pages.content(made(tmp_path / "many", to=1000, step=50, repeat=1))
    assert [one.reached for one in few.aims] == [None, None, True, True]
    assert [one.reached for one in many.aims] == [True, False, True, True]
    fat = pages.content(made(tmp_path / "fat", each=7 * MIB))
    assert [one.reached for one in fat.aims] == [None, None, False, True]
    assert fat.aims[2].measured == "7.01 MiB"


def test_slivers_that_did_not_answer_at_the_end_are_told(tmp_path: Path) -> None:
    run = made(tmp_path / "run", to=1000, step=100, repeat=1)
    run.steps["1/check"]["data"]["reached"] = 997
    content = pages.content(run)
    assert "997 of 1000 again" in content.outcome[0] and content.aims[0].reached is False


def test_the_knee_of_machines(tmp_path: Path) -> None:
    content = pages.content(made(tmp_path / "run", sliver_type="kvm", to=120, step=10, each=320 * MIB, repeat=1))
    assert (
        any("It stopped before" in one for one in content.outcome)
        and "The knee is at 70 machines: from there on swap is in use." in content.outcome
    )
    assert [one.reached for one in content.aims] == [True, True]
    paper = next(one for one in content.tables if one.title == "Compared with the paper")
    assert [row[1:3] for row in paper.rows[:2]] == [["30", "70"], ["40", "70"]]
    assert [mark.at for mark in content.plots[0].marks] == [30, 40]


def test_nothing_measured_is_told(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    with pytest.raises(Refused, match="no step with a state of the node") as refused:
        pages.content(folder.Run(run.folder, run.info, {}))
    assert refused.value.field == "FOLDER"
    with pytest.raises(Refused, match="'thesis' is no experiment"):
        pages.content(folder.Run(run.folder, {**run.info, "experiment": "thesis"}, run.steps))


def test_a_run_that_was_cut_off_says_so(tmp_path: Path) -> None:
    run = made(tmp_path / "run", outcome="interrupted")
    context = pages.context(run, pages.content(run), None, None)
    assert context["outcome"][0] == "This run is not complete: interrupted."


# --- files ------------------------------------------------------------------------------------------------------------


class Text(html.parser.HTMLParser):
    """Ids of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]


@pytest.mark.usefixtures("full_plots")
def test_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    run, older = made(tmp_path / "new"), made(tmp_path / "old", seconds=0.2)
    written = {one.name for one in pages.write(run, older)}
    expected = {"report.html", "report.md", "data.csv", "data.json", "resources.png", "creates.png"}
    assert written == expected and expected < {one.name for one in run.folder.iterdir()}
    page = (run.folder / "report.html").read_text()
    assert LINK.findall(page) == []
    found = Text(page)
    assert {"svg", "table", "figure"} <= found.tags and len(found.ids) == len(set(found.ids))
    assert "A Processor &lt;2.66 GHz&gt;" in page and "<2.66" not in page
    assert "significantly better: create, request to ssh banner" in page
    for picture in re.findall(r"\]\((.*?)\)", (run.folder / "report.md").read_text()):
        assert (run.folder / picture).read_bytes().startswith(b"\x89PNG")


def test_a_page_with_a_link_is_noticed() -> None:
    """The control of the test before."""
    for bad in ('<img src="x.png">', "<script>", "<link rel=stylesheet>", "a { background: url(http://x) }"):
        assert LINK.findall(bad)
    assert LINK.findall('<use xlink:href="#a"/> url(#b)') == []


def test_data_beside_the_report(tmp_path: Path) -> None:
    run = made(tmp_path / "run", to=20, repeat=1)
    pages.data(run, pages.content(run))
    rows = list(csv.DictReader(io.StringIO((run.folder / "data.csv").read_text())))
    assert [row["slivers"] for row in rows] == ["0", "5", "10", "15", "20"]
    assert rows[0]["create_p50"] == "" and float(rows[4]["disk_growth"]) == 20 * 280 * KIB
    whole = json.loads((run.folder / "data.json").read_text())
    assert len(whole["steps"]) == 7 and whole["run"]["experiment"] == "scale" and len(whole["rows"]) == 5


def test_another_experiment_is_no_comparison(tmp_path: Path) -> None:
    run = made(tmp_path / "run", to=20)
    other = folder.Run(tmp_path, {**run.info, "experiment": "io"}, run.steps)
    with pytest.raises(Refused, match="is a run of io, not of scale") as refused:
        pages.write(run, other)
    assert refused.value.field == "--compare"


def test_without_matplotlib_it_says_how_to_install_it(tmp_path: Path) -> None:
    made(tmp_path / "run", to=20)
    program = (
        "import sys; sys.modules['matplotlib'] = None\nfrom slicemgr.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "bench", "report", str(tmp_path / "run")]
    said = subprocess.run(argv, capture_output=True, text=True)
    assert said.returncode == Code.UNAVAILABLE.exit_status
    assert "matplotlib, which is not installed" in said.stderr and "pip install 'slicemgr[bench]'" in said.stderr
    assert not (tmp_path / "run" / "report.html").exists()


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plot", [LINES, BARS], ids=lambda plot: plot.name)
@pytest.mark.usefixtures("full_plots")
def test_a_plot_takes_its_colours_from_the_page(plot: Plot) -> None:
    text = plots.svg(plot)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg") and root.get("aria-label") == plot.title and root.get("width") is None
    assert "var(--ink)" in text and "var(--curve-1)" in text
    painted = re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text)
    assert set(painted) == set()
    assert plots.svg(plot) == text
    words = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert plot.left.text in words and plot.x.text in words


@pytest.mark.parametrize(
    ("log", "counts", "labels"),
    [(False, [1, 2, 3, 4], ["1", "2", "3", "4"]), (True, [1, 4, 30, 200], ["1", "4", "30", "200"])],
)
def test_counts_have_whole_numbers_on_their_axis(log: bool, counts: list[float], labels: list[str]) -> None:
    plot = Plot("x", "x", Axis("slivers", log=log), Axis("y", least=100, most=900), [Series("", counts, [500.0] * 4)])
    axes = plots.draw(plot, plots._PAPER).axes[0]
    shown = [text for one in axes.get_xticklabels(which="both") if (text := one.get_text())]
    assert set(labels) <= set(shown) and all(one.isdigit() for one in shown)


@pytest.mark.parametrize(("label", "columns"), [("a", 4), ("the memory controller, promised", 2), ("a" * 60, 1)])
def test_a_legend_has_as_many_columns_as_fit(label: str, columns: int) -> None:
    series = [Series(f"{label} {number}", [1.0], [1.0]) for number in range(4)]
    figure = plots.draw(Plot("x", "x", Axis("x"), Axis("y"), series), plots._PAPER)
    (legend,) = figure.legends
    assert legend._ncols == columns  # type: ignore[attr-defined]
    assert legend.get_window_extent().width <= figure.bbox.width


def test_many_bars_and_groups_can_be_told_apart() -> None:
    """Beyond the last colour bars have stripes, and long labels side by side several lines."""
    names = [f"a-long-name-{number}" for number in range(8)]
    plot = Plot("x", "x", Axis("x"), Axis("y"), [Series(name, [], [1.0] * 8) for name in names], groups=names)
    axes = plots.draw(plot, plots._PAPER).axes[0]
    looks = [(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in axes.containers]
    assert len(set(looks)) == 8
    assert all("\n" in one.get_text() for one in axes.get_xticklabels())
    few = replace(plot, groups=names[:2], series=[replace(one, y=[1.0] * 2) for one in plot.series[:2]])
    assert [one.get_text() for one in plots.draw(few, plots._PAPER).axes[0].get_xticklabels()] == names[:2]


def test_the_memory_of_few_slivers_is_not_judged(tmp_path: Path) -> None:
    """It is less than the noise of the node's memory, as in the report of lifecycle."""
    verdicts = [
        [
            one.reached
            for one in pages.content(made(tmp_path / name, to=to, step=2, each=80 * MIB)).aims
            if "6 MiB" in one.text
        ]
        for name, to in (("few", 6), ("more", 60))
    ]
    assert verdicts == [[None], [False]]


def test_a_plot_that_does_not_fit_together_is_noticed() -> None:
    plots.check([LINES, BARS])
    short = Plot("x", "x", Axis("n"), Axis("y"), [Series("a", [1, 2], [1.0])])
    side = Plot("x", "x", Axis("n"), Axis("y"), [Series("a", [1], [1.0], right=True)])
    for plot in (short, side):
        with pytest.raises(ValueError, match="plot x: a"):
            plots.check([plot])


@pytest.mark.usefixtures("full_plots")
def test_png_is_the_same_each_time() -> None:
    assert plots.png(LINES) == plots.png(LINES)


# --- comparison -------------------------------------------------------------------------------------------------------


def _content(**values: list[float]) -> Content:
    return Content("x", [], metrics=[Metric(name, "s", one) for name, one in values.items()])


def test_each_difference_with_its_significance() -> None:
    old = _content(slower=[1.0, 1.1, 0.9], faster=[5.0, 5.1, 4.9], same=[1.0, 2.0, 3.0], gone=[1.0], one=[1.0])
    new = _content(slower=[2.0, 2.1, 1.9], faster=[1.0, 1.1, 0.9], same=[1.1, 2.0, 2.9], more=[1.0], one=[2.0])
    table = compare.table(new, old)
    verdicts = {str(row[0]): row[-1] for row in table.rows}
    assert verdicts == {
        "slower (s)": "worse",
        "faster (s)": "better",
        "same (s)": "no significant difference",
        "one (s)": "undetermined",
    }
    assert (
        compare.sentence(table)
        == "Compared with the earlier run: significantly better: faster; significantly worse: slower."
    )


def test_what_else_differs_is_told(tmp_path: Path) -> None:
    one, two = made(tmp_path / "one", to=20), made(tmp_path / "two", to=40)
    other = {**two.info, "node": {**two.info["node"], "kernel": "6.1.0", "memory": 4 * GIB}}
    assert compare.caveats(one.info, other) == [
        "parameter to: 40 then, 20 now",
        f"node memory: {4 * GIB} then, {24 * GIB} now",
        "node kernel: 6.1.0 then, 6.18.0 now",
    ]
    assert compare.caveats(one.info, one.info) == []


def test_a_cell_is_as_people_read_it() -> None:
    assert [pages.cell(one) for one in (None, "", 3, 0.1 + 0.2, "a\x1b")] == ["–", "–", "3", "0.3", "a\\x1b"]
    assert pages.cell(1.0, Column("x", digits=2)) == "1.00" and pages.heading(Column("x", "s")) == "x (s)"
    table = Table("t", [Column("a"), Column("b")], [["x", 1], ["y", None]])
    assert [pages.numeric(table, place) for place in (0, 1)] == [False, True]

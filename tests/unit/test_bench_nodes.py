"""bench nodes by its command line, against a simulated testbed of three nodes, and the verdicts of its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import canned_service as canned
import node_runs
import pytest
from canned_service import Answer, Request
from paper_testbed import PaperTestbed

from slicemgr.bench.experiments import nodes
from slicemgr.bench.frame import folder
from slicemgr.bench.report import nodes as report
from slicemgr.bench.report import pages, plots
from slicemgr.cli import main
from slicemgr.client import Client
from slicemgr.errors import SlicemgrError

SMALL = ("bench", "nodes", "--rounds", "3", "--placements", "2", "--resyncs", "2")
SENT = "slicemgr_web_image_bytes_total"


class NodesTestbed(PaperTestbed):
    """The centre, whose agent uses the database of the service, and two nodes that have joined."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["centre", "n1", "n2"]
        self.sent = 0
        self.imported = ""
        self.on("GET /nodes", lambda _: Answer(200, {"nodes": [self._shown(name) for name in self.names]}))
        for name in self.names:
            self.on(f"GET /nodes/{name}", lambda _, name=name: Answer(200, self._shown(name)))
        for name in self.names[1:]:
            waits = {**self._shown(name), "resync_at": "2026-11-23T10:00:00Z"}
            self.on(f"POST /nodes/{name}/resync", waits)
        self.on("GET /metrics", lambda _: Answer(200, f"# TYPE x counter\n{SENT} {self.sent}.0\n".encode()))
        self.on("GET /images", lambda _: Answer(200, {"images": self._images()}))
        self.on("POST /images", self._import)

    def _shown(self, name: str) -> dict[str, Any]:
        beat = None if name == "centre" else "2026-11-23T10:00:00Z"
        return {**self._node(), "name": name, "state": "active", "liveness": "alive", "beat_at": beat}

    def _images(self) -> list[dict[str, Any]]:
        return [{"name": self.imported, "sha256": "cd" * 32}] if self.imported else []

    def _import(self, request: Request) -> Answer:
        """The centre imports it. The first node gets all of it from the service, and the next one half."""
        name = self.imported = request.query["name"]
        done = canned.operation("done", id="import", kind="import")
        self.on("GET /operations/import", done)
        ready = {"site": "", "state": "ready", "error": "", "base_size": 1, "updated_at": "2026-11-23T10:00:00Z"}
        self.on(f"GET /images/{name}/nodes", {"nodes": [{"node": "centre", **ready}]})
        parts = iter((len(request.data), len(request.data) // 2))
        step = {"sliver": "", "state": "done", "detail": "", "percent": 100, "began": 0.1}

        def push(asked: Request) -> Answer:
            self.sent += next(parts)
            node = asked.body["node"]
            steps = [{**step, "name": "fetch", "seconds": 0.25}, {**step, "name": "extract", "seconds": 5.0}]
            self.on(f"GET /operations/push-{node}", canned.operation("done", id=f"push-{node}", steps=steps))
            return Answer(202, {"operation": canned.operation(id=f"push-{node}")})

        def delete(_: Request) -> Answer:
            self.imported = ""
            return Answer(202, {"operation": done})

        self.on(f"POST /images/{name}/push", push)
        self.on(f"DELETE /images/{'cd' * 32}", delete)
        return Answer(202, {"image": {"name": name, "sha256": "cd" * 32}, "operation": done})


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodesTestbed]:
    with NodesTestbed() as made:
        monkeypatch.setenv("SLICEMGR_URL", made.url)
        monkeypatch.setenv("SLICEMGR_TOKEN", "admin")
        yield made


def _parameters(**more: Any) -> nodes.NodesParameters:
    return nodes.NodesParameters(lambda: Client("http://127.0.0.1:1", "x"), "centre", ("n1", "n2"), "key", "b-", **more)


def test_a_round_has_a_create_on_every_node_in_an_order_of_its_own() -> None:
    found = [one for one in nodes.steps(_parameters(rounds=20)) if one.work.kind == nodes.CREATE]
    assert [one.id for one in found] == [f"create/{number}" for number in range(1, 21)]
    orders = [one.work.nodes for one in found]
    assert all(sorted(one) == ["centre", "n1", "n2"] for one in orders) and len(set(orders)) > 3
    assert orders == [one.work.nodes for one in nodes.steps(_parameters(rounds=20)) if one.work.kind == nodes.CREATE]


def test_a_run_from_nothing_to_a_report(
    testbed: NodesTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.raw"
    file.write_bytes(b"x" * 1000)
    run = tmp_path / "run"
    assert main([*SMALL, "--image-file", str(file), "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "done" and testbed.there == {} and testbed.imported == ""
    assert list(result.steps) == ["create/1", "create/2", "create/3", "placement", "resync", "image"]
    assert result.info["parameters"]["local"] == "centre" and result.info["parameters"]["nodes"] == "n1 n2"
    for number in (1, 2, 3):
        data = result.steps[f"create/{number}"]["data"]
        assert set(data["creates"]) == {"centre", "n1", "n2"} and len(data["order"]) == 3
        for times in data["creates"].values():
            assert 0 < times["accepted"] <= times["operation"] <= times["banner"] and len(times["trips"]) == 5
            assert times["node"] == pytest.approx(0.14)  # the steps of the simulated testbed
    plans = result.steps["placement"]["data"]
    assert [len(plans[kind]) for kind in ("named", "placed", "spread")] == [2, 2, 2]
    rows = result.steps["resync"]["data"]
    assert [len(rows[node]) for node in ("n1", "n2")] == [2, 2] and len(testbed.asked("POST /nodes/n1/resync")) == 2
    image = result.steps["image"]["data"]
    assert image["had"] == ["centre"] and list(image["alone"]) == ["n1"] and list(image["together"]) == ["n2"]
    assert image["copies"] == 1.5 and image["alone"]["n1"]["fetch"] == 0.25
    assert "The service uploaded 1.50 copies" in capsys.readouterr().err
    asked = [one.body for one in testbed.asked("POST /slices")]
    placed = [one for one in asked if "node" not in one]
    assert len(placed) == 4 and all(one["dry_run"] for one in placed)
    assert {one["node"] for one in asked if "node" in one} == {"centre", "n1", "n2"}


def test_the_image_of_a_killed_run_is_deleted(testbed: NodesTestbed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    with Client.local() as client:
        file = tmp_path / "some.raw"
        file.write_bytes(b"x")
        with file.open("rb") as opened:
            client.images.upload(opened, 1, name=f"{folder.read(run).info['prefix']}image", format="raw")
    assert testbed.imported
    assert main(["bench", "clean", str(run)]) == 0 and testbed.imported == ""


def test_a_testbed_of_one_machine_is_refused(
    testbed: NodesTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.names = ["centre"]
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == 4
    assert "no node has joined this testbed" in capsys.readouterr().err
    testbed.names = ["n1", "n2"]
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == 4
    assert "--local NODE names the node to compare with" in capsys.readouterr().err
    assert main([*SMALL, "--local", "n1", "--node", "n1", "--output", str(tmp_path / "run")]) == 2
    assert "n1 is the node to compare with" in capsys.readouterr().err
    assert main([*SMALL, "--local", "n1", "--node", "n9", "--output", str(tmp_path / "run")]) == 2
    assert "there is no node 'n9'" in capsys.readouterr().err and testbed.asked("POST /slices") == []


def test_a_port_that_nothing_listens_at_has_no_round_trip() -> None:
    with pytest.raises(Exception, match=r"port 1 of 127\.0\.0\.1 cannot be reached"):
        nodes.round_trips("127.0.0.1", 1)


def test_a_service_that_does_not_count(testbed: NodesTestbed) -> None:
    with Client.local() as client:
        assert nodes.uploaded(client) == 0.0
        testbed.on("GET /metrics", lambda _: Answer(200, b"# nothing\n"))
        assert nodes.uploaded(client) is None
        testbed.on("GET /metrics", lambda _: canned.problem(403, "forbidden"))
        with pytest.raises(SlicemgrError):
            nodes.uploaded(client)


# --- report -----------------------------------------------------------------------------------------------------------


def test_the_allowed_delay_follows_the_round_trip() -> None:
    assert [report.allowed(trip) for trip in (0.0, 0.05, 0.1)] == pytest.approx([0.05, 0.275, 0.5])


@pytest.mark.parametrize(
    ("more", "trip", "reached"),
    [(0.03, 0.001, True), (0.08, 0.001, False), (0.3, 0.1, True), (0.3, 0.02, False), (0.6, 0.1, False)],
)
def test_the_aim_of_a_node(more: float, trip: float, reached: bool, tmp_path: Path) -> None:
    run = node_runs.made(tmp_path / "run", nodes={"n1": (more, trip)})
    aim = pages.content(run).aims[0]
    assert aim.reached is reached and f"{1000 * more:+.0f} ms (" in aim.measured


def test_few_rounds_decide_nothing(tmp_path: Path) -> None:
    run = node_runs.made(tmp_path / "run", rounds=3)
    assert all(one.reached is None and "this run had 3 rounds" in one.measured for one in pages.content(run).aims[:2])


@pytest.mark.parametrize(("copies", "reached"), [(1.2, True), (1.6, False), (None, None)])
def test_the_aim_of_an_image(copies: float | None, reached: bool | None, tmp_path: Path) -> None:
    assert pages.content(node_runs.made(tmp_path / "run", copies=copies)).aims[-1].reached is reached


@pytest.mark.usefixtures("full_plots")
def test_plots_of_one_round_and_of_nodes_without_steps(tmp_path: Path) -> None:
    found = pages.content(node_runs.made(tmp_path / "run", rounds=1, steps=False))
    assert [one.name for one in found.plots] == ["phases", "rounds"]
    assert all(plots.svg(one).startswith("<svg") for one in found.plots)


def test_a_round_that_was_interrupted_does_not_count(tmp_path: Path) -> None:
    run = node_runs.made(tmp_path / "run", rounds=6)
    del run.steps["create/2"]["data"]["creates"]["n2"]
    assert len(report.found_in(run).rounds) == 5


def test_nothing_is_reported_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nothing to report: no round is finished yet"):
        pages.content(node_runs.made(tmp_path / "run", rounds=0, plans=False, copies=None, image=False))

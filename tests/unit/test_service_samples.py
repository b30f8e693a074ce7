"""Output of measurements: series, rates, sums, CSV, top, accounts; also through slicectl."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bare_service import Service
from flask.testing import FlaskClient
from tenants import Tenants
from terminal import Terminal
from test_samples import MIB, NODE, fill, part, sum_all, whole
from werkzeug.serving import make_server

from slicemgr.cli import main
from slicemgr.config import RecordConfig
from slicemgr.errors import Refused
from slicemgr.service.views import samples
from slicemgr.store import pending
from slicemgr.store import samples as rows

API = "/api/v1"
RECORD = RecordConfig()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        made.create(count=2)
        yield made


@pytest.fixture
def client(service: Service) -> FlaskClient:
    made = service.app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
    return made


def current() -> int:
    """Unix time."""
    return int(datetime.now(UTC).timestamp())


def measured(service: Service) -> int:
    """Ten minutes up to now; when they began."""
    start = current() - 600
    fill(service, 20, start, cpu=15.0, net_in=3000, charged_peak=12 * MIB)
    return start


@pytest.mark.parametrize(
    ("since", "until", "resolution", "chosen"),
    [
        (None, None, None, "raw"),
        ("5h", None, None, "raw"),
        ("7h", None, None, "5m"),
        ("5h30m", None, None, ""),
        ("6d", None, "auto", "5m"),
        ("30d", None, None, "1h"),
        ("8d", "7d", None, "1h"),
        ("30d", "29d", "raw", "raw"),
        ("2026-11-21T00:00:00+02:00", None, "1h", "1h"),
        ("1h", "2h", None, ""),
        ("soon", None, None, ""),
        ("9" * 40 + "d", None, None, ""),
        ("1h", None, "2m", ""),
    ],
)
def test_windows(since: str | None, until: str | None, resolution: str | None, chosen: str) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    if not chosen:
        with pytest.raises(Refused) as refused:
            samples.time_range(RECORD, since, until, resolution, now)
        assert refused.value.field in ("since", "resolution") and refused.value.hint
        return
    found = samples.time_range(RECORD, since, until, resolution, now)
    assert found.head(RECORD)["resolution"] == chosen and found.since < found.until <= now.timestamp()


def test_a_slice_in_columns(service: Service, client: FlaskClient) -> None:
    start = measured(service)
    told = client.get(f"{API}/slices/exp/samples?since=20m").get_json()
    assert (told["slice"], told["resolution"], told["seconds"]) == ("exp", "raw", 30.0)
    assert told["at"] == [start + 30 * number for number in range(1, 21)]
    assert [one["index"] for one in told["slivers"]] == [0, 1]
    first = told["slivers"][0]
    assert first["series"]["cpu"] == [0.5] * 20 and first["series"]["net_in"] == [100.0] * 20
    assert first["series"]["memory"] == [10 * MIB] * 20 and first["series"]["guest"] == [None] * 20
    assert first["totals"]["cpu_seconds"] == 300.0 and first["totals"]["net_in"] == 60_000
    assert first["series"]["charged"] == first["series"]["memory"], "its former name"
    assert first["totals"]["memory_peak"] == 12 * MIB and first["totals"]["running_seconds"] == 600.0
    assert first["totals"]["charged_peak"] == 12 * MIB and first["totals"]["charged_mean"] == 10 * MIB
    assert first["totals"]["memory_mean"] == 10 * MIB and first["totals"]["working_mean"] is None
    assert (first["limits"]["memory"], first["limits"]["memory_guarantee"]) == (512 * MIB, 0)


def test_chosen_columns_and_all_together(service: Service, client: FlaskClient) -> None:
    measured(service)
    told = client.get(f"{API}/slices/exp/samples?columns=cpu,memory&total=true").get_json()
    (together,) = told["slivers"]
    assert set(together["series"]) == {"cpu", "memory"}
    assert together["series"]["cpu"] == [1.0] * 20 and together["totals"]["net_in"] == 120_000


def test_the_resolutions_come_to_the_same(service: Service, client: FlaskClient) -> None:
    start = (current() - 3 * 3600) // 3600 * 3600
    fill(service, 240, start, cpu=3.0, net_out=11)
    sum_all(service, start + 7200)
    sums = []
    for resolution in ("raw", "5m", "1h"):
        query = f"since={start_text(start)}&until={start_text(start + 7200)}&resolution={resolution}"
        told = client.get(f"{API}/slices/exp/samples?{query}").get_json()
        sums.append({key: told["slivers"][0]["totals"][key] for key in ("seconds", "cpu_seconds", "net_out")})
    assert sums[0] == sums[1] == sums[2] == {"seconds": 7200.0, "cpu_seconds": 720.0, "net_out": 2640}


def start_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_csv_by_accept_and_by_format(service: Service, client: FlaskClient) -> None:
    measured(service)
    for query, headers in (("?format=csv", {}), ("", {"Accept": "text/csv"})):
        answer = client.get(f"{API}/slices/exp/samples{query}", headers=headers)
        assert answer.mimetype == "text/csv"
        lines = list(csv.DictReader(answer.text.splitlines()))
        assert len(lines) == 40 and lines[0]["sliver"] == "0" and lines[0]["guest"] == ""
        assert float(lines[1]["cpu"]) == 0.5 and lines[0]["at"].endswith("Z")
    assert client.get(f"{API}/slices/exp/samples?format=json", headers={"Accept": "text/csv"}).is_json
    assert client.get(f"{API}/nodes/{NODE}/samples?format=csv").text.startswith("at,sliver,memory,")


@pytest.mark.parametrize(
    "query", ["since=x", "columns=secret", "resolution=1s", "format=xml", "total=perhaps", "since=1m&until=5m"]
)
def test_bad_input_is_named(client: FlaskClient, query: str) -> None:
    answer = client.get(f"{API}/slices/exp/samples?{query}")
    assert answer.status_code == 422 and answer.get_json(force=True)["field"] in query


def test_too_much_at_once_is_refused(service: Service, client: FlaskClient) -> None:
    answer = client.get(f"{API}/slices/exp/samples?since=90d&resolution=raw")
    assert answer.status_code == 422 and "coarser" in answer.get_json(force=True)["hint"]


def test_a_sliver_that_did_not_run_has_no_rates(service: Service, client: FlaskClient) -> None:
    now = current()
    with service.store.write() as c:
        first, second = rows.slivers(c, NODE)
        stopped = part(now, second.serial, running=0.0, disk=MIB)
        rows.write(c, whole(now), [part(now, first.serial, cpu=3.0), stopped], dict.fromkeys((1, 2), "default"))
    told = client.get(f"{API}/slices/exp/samples?columns=cpu,memory,disk").get_json()
    assert [one["series"]["cpu"] for one in told["slivers"]] == [[0.1], [None]]
    assert told["slivers"][1]["series"]["disk"] == [MIB]


def test_top_has_what_runs_now(service: Service, client: FlaskClient) -> None:
    measured(service)
    told = client.get(f"{API}/top").get_json()
    assert [(one["slice"], one["index"], one["cpu"]) for one in told["slivers"]] == [("exp", 0, 0.5), ("exp", 1, 0.5)]
    assert [one["node"] for one in told["nodes"]] == [NODE]


def test_top_does_not_show_what_was(service: Service, client: FlaskClient) -> None:
    fill(service, 2, current() - 3600)
    assert client.get(f"{API}/top").get_json() == {"nodes": [], "slivers": []}


def test_accounts(service: Service, client: FlaskClient) -> None:
    measured(service)
    month = datetime.now(UTC).strftime("%Y-%m")
    (account,) = client.get(f"{API}/accounts?month={month}").get_json()["accounts"]
    assert account["project"] == "default" and account["sliver_hours"] == pytest.approx(1 / 3, abs=1e-4)
    (none,) = client.get(f"{API}/accounts?project=default&month=1999-01").get_json()["accounts"]
    assert none["sliver_hours"] == 0
    assert client.get(f"{API}/accounts?month=2026-13").status_code == 422
    assert client.get(f"{API}/accounts?format=csv").text.startswith("project,month,sliver_hours,")


def test_nobody_sees_what_others_used(tmp_path: Path) -> None:
    """top and accounts of carol have nothing of lab; bob's have."""
    with Tenants(tmp_path) as tenants:
        tenants.record(pending.NodeSeen(NODE, "192.0.2.1"))
        now = current()
        with tenants.store.write() as c:
            known = rows.slivers(c, NODE)
            parts = [part(now, one.serial, charged=MIB, net_in=1) for one in known]
            rows.write(c, whole(now), parts, {one.serial: one.project for one in known})
        for path in ("top", "accounts"):
            texts = {who: tenants.client(who).get(f"{API}/{path}").text for who in ("carol", "bob", "root")}
            assert "lab" not in texts["carol"] and "lab" in texts["bob"] and "lab" in texts["root"]


def test_the_queries_do_not_grow_with_the_slivers(tmp_path: Path) -> None:
    import sqlalchemy as sa

    counts = []
    for number in (2, 40):
        with Service(tmp_path / str(number)) as service:
            service.create(count=number)
            fill(service, 3, current() - 100)
            asked: list[str] = []
            sa.event.listen(service.store.engine, "before_cursor_execute", lambda *words: asked.append(words[2]))  # noqa: B023
            from bare_service import ADMIN

            with service.store.read() as c:
                samples.top(c, service.config, ADMIN)
                id = c.scalar(sa.text("select id from slices"))
                samples.of_slice(c, service.config, id, samples.time_range(RECORD, "1h", None, None))
            counts.append(len(asked))
    assert counts[0] == counts[1]


# --- slicectl ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def url(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    measured(service)
    server = make_server("127.0.0.1", 0, service.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("SLICEMGR_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("SLICEMGR_TOKEN", service.token())
    yield server.host
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("url")
class TestSlicectl:
    def out(self, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
        assert main(words) == status
        told = capsys.readouterr()
        return told.out if status == 0 else told.err

    def test_top(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = self.out(capsys, "top", "--once").splitlines()
        assert lines[0].startswith("node1: 2 lxc, 0 kvm") and lines[3].split()[:4] == [
            "exp/0",
            "default",
            "lxc",
            "0.50",
        ]
        told = json.loads(self.out(capsys, "top", "--sort", "memory", "--count", "1", "-f", "json"))
        assert [one["index"] for one in told["slivers"]] == [0]

    def test_top_lives_on_a_terminal_until_it_is_interrupted(self) -> None:
        words = [sys.executable, "-c", "import sys; from slicemgr.cli import main; sys.exit(main())", "top"]
        with Terminal([*words, "--interval", "0.2s"], os.environ) as terminal:
            terminal.see("exp/1")
            terminal.see("\x1b[H")
            terminal.see("exp/1")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == (0, "")

    def test_usage_of_a_slice(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = json.loads(self.out(capsys, "usage", "exp", "--since", "1h", "-f", "json"))
        assert [(one["what"], one["cpu_seconds"]) for one in found] == [("exp/0", 300.0), ("exp/1", 300.0)]
        assert "300.0 s" in self.out(capsys, "usage", "exp", "--project", "default")
        whole = json.loads(self.out(capsys, "usage", "exp", "--since", "1h", "--series", "-f", "json"))
        assert len(whole["at"]) == 20
        assert self.out(capsys, "usage", "exp", "-f", "csv", "-c", "what,net_in").splitlines()[1] == "exp/0,60000"

    def test_usage_of_the_node(self, capsys: pytest.CaptureFixture[str]) -> None:
        (found,) = json.loads(self.out(capsys, "usage", "--node", "--since", "1h", "-f", "json"))
        assert found["what"] == "node1" and found["seconds"] == 600.0

    def test_usage_of_projects(self, capsys: pytest.CaptureFixture[str]) -> None:
        month = datetime.now(UTC).strftime("%Y-%m")
        words = ("usage", "--project", "default", "--month", month)
        (found,) = json.loads(self.out(capsys, *words, "-f", "json"))
        assert found["project"] == "default" and found["net_in"] == 120_000
        assert "0.33 h" in self.out(capsys, *words)
        assert self.out(capsys, "usage", "-f", "csv").startswith("project,month,")

    @pytest.mark.parametrize(
        ("words", "status"),
        [
            (("usage", "nothing"), 3),
            (("usage", "exp", "--month", "2026-11"), 2),
            (("usage", "--until", "1h"), 2),
            (("usage", "-c", "cpu_seconds"), 2),
            (("usage", "--month", "November"), 2),
            (("usage", "exp", "--since", "soon"), 2),
            (("usage", "nowhere", "--node"), 3),
            (("top", "--sort", "beauty"), 2),
        ],
    )
    def test_what_is_wrong(self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int) -> None:
        said: Any = self.out(capsys, *words, status=status)
        assert len(said.splitlines()) == 1

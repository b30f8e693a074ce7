"""Metrics, alert rules, dashboard and plug-in, with Debian's own Prometheus and promtool."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from bare_service import FACTS, Service
from flask.testing import FlaskClient
from test_samples import MIB, NODE, part, whole
from testbed import eventually
from werkzeug.serving import make_server

from slicemgr.config import RecordConfig
from slicemgr.model import GIB, Phase
from slicemgr.store import pending as work
from slicemgr.store import samples
from slicemgr.web import create_app

TOOLS = Path(__file__).parent.parent.parent / "tools" / "monitoring"
PLUGIN = TOOLS / "check_slicemgr"
SCRAPE = """\
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ "{rules}" ]
scrape_configs:
  - job_name: slicemgr
    authorization: {{ credentials_file: "{token}" }}
    static_configs: [ {{ targets: ["{target}"] }} ]
"""


def now() -> int:
    return int(time.time())


def measured(service: Service) -> None:
    """Two samples of two running slivers, the last one now; most of the pool is taken."""
    ids = [row.sliver.id for row in service.rows()]
    service.record(*(work.SliverSeen(one, Phase.RUNNING) for one in ids))
    full = {"disk": 85 * GIB, "disk_total": 100 * GIB, "memory": GIB, "memory_total": 8 * GIB, "swap_total": 0}
    with service.store.write() as c:
        known = samples.slivers(c, NODE)
        projects = {one.serial: one.project for one in known}
        for at in (now() - 30, now()):
            parts = [part(at, one.serial, working=5 * MIB, cpu=3.0, net_in=300, disk=MIB) for one in known]
            samples.write(c, whole(at, **full, swap=0, cpu=6.0, sample_seconds=0.02, kvm=0), parts, projects)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        made.create(count=2)
        measured(made)
        yield made


def client_of(service: Service) -> FlaskClient:
    made = service.app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
    return made


@contextmanager
def served(service: Service) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, service.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def families(text: str) -> dict[str, str]:
    """Names and types."""
    return dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))


def sample(text: str, name: str, **labels: str) -> float:
    words = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    (line,) = (one for one in text.splitlines() if one.startswith(f"{name}{{{words}}} " if words else f"{name} "))
    return float(line.rpartition(" ")[2])


def test_what_is_told(service: Service) -> None:
    answer = client_of(service).get("/metrics")
    assert answer.mimetype == "text/plain"
    text = answer.text
    assert sample(text, "slicemgr_slivers", node=NODE, type="lxc", state="running") == 2
    assert sample(text, "slicemgr_slices", type="lxc") == 1
    assert sample(text, "slicemgr_node_disk_bytes", node=NODE) == 85 * GIB
    assert sample(text, "slicemgr_node_cpu_cores", node=NODE) == 0.2
    assert sample(text, "slicemgr_node_ports_used", node=NODE) == 40
    assert sample(text, "slicemgr_project_sliver_seconds_total", project="default") == pytest.approx(120)
    assert sample(text, "slicemgr_project_network_receive_bytes_total", project="default") == 1200
    assert sample(text, "slicemgr_operations", kind="create", state="queued") == 1
    assert abs(sample(text, "slicemgr_node_sample_timestamp_seconds", node=NODE) - now()) < 60


def test_room_for_metadata_is_what_the_node_reports(service: Service) -> None:
    """An agent of an earlier version reports none: there is no figure then."""
    assert "slicemgr_node_metadata" not in scraped_lines(service)
    service.record(work.NodeSeen("node1", "192.0.2.1", {**FACTS, "metadata_used": 5, "metadata_free": 7}))
    lines = scraped_lines(service)
    assert 'slicemgr_node_metadata_bytes{node="node1"} 5.0' in lines
    assert 'slicemgr_node_metadata_free_bytes{node="node1"} 7.0' in lines


def scraped_lines(service: Service) -> str:
    """The metrics that are values."""
    text = client_of(service).get("/metrics").text
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def test_promtool_finds_names_and_helps_in_order(service: Service) -> None:
    text = client_of(service).get("/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = text.replace("slicemgr_project_cpu_seconds_total", "slicemgr_project_cpu_milliseconds")
    control = subprocess.run(["promtool", "check", "metrics"], input=wrong, capture_output=True, text=True)
    assert control.returncode != 0


def test_labels_are_few_and_never_a_user(service: Service) -> None:
    text = client_of(service).get("/metrics").text
    labels = set(re.findall(r"[{,]([a-z]+)=", text))
    assert labels <= {"version", "node", "type", "state", "kind", "project", "reason", "resource"}
    config = replace(service.config, record=RecordConfig(slice_metrics=True))
    made = create_app(config, service.store).test_client()
    more = made.get("/metrics", headers={"Authorization": f"Bearer {service.token()}"}).text
    assert set(re.findall(r"[{,]([a-z]+)=", more)) - labels == {"slice"}
    assert sample(more, "slicemgr_slice_memory_bytes", project="default", slice="exp") == 10 * MIB
    assert sample(more, "slicemgr_slice_cpu_cores", project="default", slice="exp") == 0.2


def test_the_series_do_not_grow_with_the_slivers(service: Service) -> None:
    before = client_of(service).get("/metrics").text.count("\n")
    service.create("more", count=30)
    assert client_of(service).get("/metrics").text.count("\n") - before <= 1, "slivers that are being created"


def test_openmetrics_for_who_accepts_it(service: Service) -> None:
    answer = client_of(service).get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.mimetype == "application/openmetrics-text" and answer.text.endswith("# EOF\n")


def test_before_there_is_anything(tmp_path: Path) -> None:
    with Service(tmp_path, facts=None) as empty:
        text = client_of(empty).get("/metrics").text
    assert sample(text, "slicemgr_projects") == 1


# --- rules and dashboard ----------------------------------------------------------------------------------------------


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, cwd=TOOLS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_right_and_fire_when_they_should() -> None:
    promtool("check", "rules", "slicemgr.rules.yml")
    promtool("test", "rules", "slicemgr.rules_test.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def expressions() -> list[str]:
    dashboard = json.loads((TOOLS / "slicemgr-dashboard.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    nodes = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    rules = re.findall(r"expr: (.*)", (TOOLS / "slicemgr.rules.yml").read_text())
    return [*panels, *nodes, *rules]


def test_rules_and_dashboard_ask_for_what_there_is(service: Service) -> None:
    kinds = families(client_of(service).get("/metrics").text)
    asked = {word for one in expressions() for word in re.findall(r"slicemgr_[a-z0-9_]+", one)}
    assert asked and asked <= set(kinds)


# --- a real Prometheus ------------------------------------------------------------------------------------------------


class Prometheus:
    """Debian's, with a scrape every second."""

    def __init__(self, folder: Path, target: str, token: str) -> None:
        folder.mkdir()
        (folder / "token").write_text(token)
        text = SCRAPE.format(rules=TOOLS / "slicemgr.rules.yml", token=folder / "token", target=target)
        (folder / "prometheus.yml").write_text(text)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        words = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._log = (folder / "log").open("w")
        argv = ["prometheus", *words, f"--web.listen-address={self._address}", "--log.level=warn"]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def wait(self, query: str) -> Any:
        """The first result that is not empty."""
        deadline = time.monotonic() + 60
        while True:
            try:
                found = self.ask("query", query=query)["result"]
            except urllib.error.URLError:
                found = []
            if found:
                return found
            assert time.monotonic() < deadline, f"nothing for {query}"
            time.sleep(0.2)

    def error(self) -> str:
        """The error of the last scrape, such as that it took longer than the interval."""
        return str(self.ask("targets")["activeTargets"][0]["lastError"])


def test_a_real_prometheus_scrapes_and_every_question_of_the_dashboard_is_one(service: Service, tmp_path: Path) -> None:
    with served(service) as target:
        prometheus = Prometheus(tmp_path / "prometheus", target, service.token())
        try:
            (running,) = prometheus.wait('slicemgr_slivers{state="running"}')
            assert running["value"][1] == "2" and running["metric"]["node"] == NODE
            eventually(lambda: prometheus.error() == "", "a scrape has ended well")
            for one in expressions():
                asked = one.replace("$node", ".*")
                if not asked.startswith("label_values"):
                    prometheus.ask("query", query=asked)
            (pending,) = prometheus.wait('ALERTS{alertname="SlicemgrPoolFilling"}')
            assert pending["metric"]["alertstate"] == "pending"
        finally:
            prometheus.close()


def test_a_prometheus_without_a_token_gets_nothing(service: Service, tmp_path: Path) -> None:
    with served(service) as target:
        prometheus = Prometheus(tmp_path / "prometheus", target, "wrong")
        try:
            (up,) = prometheus.wait('up{job="slicemgr"}')
            assert up["value"][1] == "0"
            eventually(lambda: "401" in prometheus.error(), "a scrape was refused")
        finally:
            prometheus.close()


# --- the plug-in ------------------------------------------------------------------------------------------------------


def check(target: str, token: str, tmp_path: Path, *words: str) -> tuple[int, str]:
    (tmp_path / "plugin-token").write_text(token)
    argv = [sys.executable, str(PLUGIN), "--url", f"http://{target}", "--token-file", str(tmp_path / "plugin-token")]
    done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
    return done.returncode, done.stdout.rstrip("\n")


def test_plugin_states(service: Service, tmp_path: Path) -> None:
    with served(service) as target:
        token = service.token()
        status, text = check(target, token, tmp_path, "--disk", "90,95")
        assert status == 0 and text.startswith("SLICEMGR OK - ")
        assert "'node1 disk'=85%;90;95;0" in text and "'failed'=0;0;10;0" in text
        status, text = check(target, token, tmp_path)
        assert status == 1 and text.startswith("SLICEMGR WARNING - node1 disk 85 % | ")
        status, text = check(target, token, tmp_path, "--disk", "50,60")
        assert status == 2 and text.startswith("SLICEMGR CRITICAL - node1 disk 85 %")
        service.record(work.SliverSeen(service.rows()[0].sliver.id, Phase.FAILED, "broken"))
        status, text = check(target, token, tmp_path, "--disk", "90,95", "--node", NODE)
        assert status == 1 and "1 slivers have failed (exp/0)" in text
        assert check(target, token, tmp_path, "--disk", "90,95", "--failed", "2,5")[0] == 0


def test_plugin_notices_an_agent_that_is_silent(tmp_path: Path) -> None:
    with Service(tmp_path / "service") as service, served(service) as target:
        status, text = check(target, service.token(), tmp_path)
        assert status == 2 and "node1 has not been measured lately" in text
        status, text = check(target, service.token(), tmp_path, "--sample", "90000,90000", "--agent", "@0:600,@~:-1")
        assert status == 1 and "agent of node1 heard of" in text


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--node", "nowhere"), 3, "no node 'nowhere'"),
        (("--disk", "80"), 3, "WARNING,CRITICAL"),
        (("--disk", "9:1,2"), 3, "ends before it begins"),
        (("--disk", "much,more"), 3, "not a range"),
        (("--beauty", "1,2"), 3, "unrecognized"),
        (("--token-file", "/nowhere/token"), 3, "FileNotFoundError"),
    ],
)
def test_plugin_is_unknown_when_it_cannot_tell(
    service: Service, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    with served(service) as target:
        found, text = check(target, service.token(), tmp_path, *words)
    assert found == status and text.startswith("SLICEMGR UNKNOWN - ") and said in text


def test_plugin_without_a_service_or_a_right_token(service: Service, tmp_path: Path) -> None:
    status, text = check("127.0.0.1:9", "x", tmp_path)
    assert status == 2 and text.startswith("SLICEMGR CRITICAL - cannot reach")
    with served(service) as target:
        status, text = check(target, "wrong", tmp_path)
        assert status == 3 and "401" in text

"""The client and the commands of the version before figures of memory got their names work with this service."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import previous_version
import pytest
from bare_service import KEY, Service
from test_service_samples import measured
from werkzeug.serving import make_server

MIB = 1 << 20
BEFORE = "765fbe1d8bfd"  # the last commit in which the usage of a sliver had `memory` alone
_SCRIPT = """
import sys
from slicemgr.bench.slivers import mean_usage
from slicemgr.client import Client
with Client.local() as client:
    usage = [one["usage"] for one in client.slice("exp")["slivers"]]
    assert mean_usage(usage) == {"memory": 9e6, "disk": 2e6}, usage
    made = client.create_slice({"name": "made", "type": "lxc", "image": "debian-12", "ssh_keys": [sys.argv[1]]})
    assert made["slice"]["name"] == "made" and client.operation(made["operation"]["id"])["state"] == "queued"
    (series,) = client.slice_samples("exp", since="1h", columns="memory,memory_peak", total="true")["slivers"]
    assert series["series"]["memory"] == [20 << 20] * 20, series
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was."""
    folder = tmp_path_factory.mktemp("before")
    previous_version.extract(BEFORE, folder, "slicemgr")
    return folder


@pytest.fixture
def environment(tmp_path: Path, before: Path) -> Iterator[dict[str, str]]:
    """Of a client as it was, and a service of today with ten minutes of samples."""
    with Service(tmp_path) as service:
        service.create(count=2)
        measured(service)
        with service.store.write() as c:
            c.exec_driver_sql(
                "UPDATE slivers SET usage_working = 9000000, usage_charged = 9500000, usage_disk = 2000000"
            )
        server = make_server("127.0.0.1", 0, service.app, threaded=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield {**os.environ, "PYTHONPATH": str(before), "SLICEMGR_URL": url, "SLICEMGR_TOKEN": service.token()}
        server.shutdown()
        thread.join()
        server.server_close()


def python(environment: dict[str, str], code: str, *words: str) -> str:
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, env=environment, cwd=environment["PYTHONPATH"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def slicectl(environment: dict[str, str], *words: str) -> str:
    code = "import sys, slicemgr; from slicemgr.cli import main; assert slicemgr.__file__.startswith(sys.argv.pop(1))"
    return python(environment, f"{code}; sys.exit(main())", environment["PYTHONPATH"], *words)


def test_its_client(environment: dict[str, str]) -> None:
    python(environment, _SCRIPT, KEY)


def test_its_commands(environment: dict[str, str]) -> None:
    first = json.loads(slicectl(environment, "show", "exp", "-f", "json"))["slivers"][0]
    assert first["usage"]["memory"] == 9_000_000
    lines = list(
        csv.DictReader(slicectl(environment, "show", "exp", "-f", "csv", "-c", "index,memory_used").splitlines())
    )
    assert [one["memory_used"] for one in lines] == ["9000000"] * 2
    assert slicectl(environment, "top", "--once").count("exp/") == 2
    found: list[Any] = json.loads(slicectl(environment, "top", "--sort", "memory", "-f", "json"))["slivers"]
    assert [one["memory"] for one in found] == [10 * MIB] * 2
    told = json.loads(slicectl(environment, "usage", "exp", "--since", "1h", "-f", "json"))
    assert {(one["memory_mean"], one["memory_peak"]) for one in told} == {(10 * MIB, 12 * MIB)}
    assert json.loads(slicectl(environment, "usage", "--node", "--since", "1h", "-f", "json"))[0]["memory_mean"] == 100

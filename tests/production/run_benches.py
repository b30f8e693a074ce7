"""Experiments on a production host; prodhost's option `--bench` names them. Their folders are kept."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from testbed import Node

HERE = Path("/opt/tests")
OUTPUT = HERE / "output"


@pytest.mark.timeout(6000)
@pytest.mark.parametrize(
    ("number", "arguments"), list(enumerate(json.loads((HERE / "bench.json").read_text()))), ids=str
)
def test_experiment(bare_node: Node, number: int, arguments: str) -> None:
    OUTPUT.mkdir(exist_ok=True)
    words = ["bench", *shlex.split(arguments), "--output", str(OUTPUT / str(number))]
    done = bare_node.slicectl(*words, timeout=5900)
    (OUTPUT / f"{number}.log").write_text(f"{arguments}\n{done.stdout}\n{done.stderr}")
    assert done.returncode == 0, done.stderr[-2000:]

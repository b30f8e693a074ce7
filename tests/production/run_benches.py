"""Measurements on a production host, which prodhost's options `--bench` and `--tool` name. What they write is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import Node

HERE = Path("/opt/tests")
OUTPUT = HERE / "output"
_LONGEST = 5900.0  # seconds


@pytest.mark.timeout(6000)
@pytest.mark.parametrize(
    ("number", "words"),
    list(enumerate(json.loads((HERE / "bench.json").read_text()))),
    ids=lambda one: " ".join(one) if isinstance(one, list) else str(one),
)
def test_measure(bare_node: Node, number: int, words: list[str]) -> None:
    OUTPUT.mkdir(exist_ok=True)
    program, *arguments = words
    if program == "slicectl":
        done = bare_node.slicectl(*arguments, "--output", OUTPUT / str(number), timeout=_LONGEST)
    else:
        argv = [sys.executable, *words]
        done = subprocess.run(argv, cwd=HERE, capture_output=True, text=True, timeout=_LONGEST)
    (OUTPUT / f"{number}.log").write_text(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    assert done.returncode == 0, done.stderr[-2000:]

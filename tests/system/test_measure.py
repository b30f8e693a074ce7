"""Measurements of the agent on its node: real roots on a real btrfs, and the confinement of the programs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import demo
import pytest
from testbed import eventually
from tiny_sliver import in_box

from slicemgr import names
from slicemgr.agent.measurements import loads
from slicemgr.agent.measurements.loads import Measurer
from slicemgr.config import Config, NodeConfig
from slicemgr.drivers import command
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Image, ImageState

SHA = "ab" * 32
MIB = 1 << 20
ASKED = {"root": "snapshot", "image": SHA, "what": "files", "size": 20, "seed": 1}
IMAGE = Image(SHA, "small", "raw", 4 * MIB, 4 * MIB, "x86_64", "Debian", ImageState.READY, datetime.now(UTC))
# The program's view of itself and the host, as a line of JSON.
LOOK = """
import json, os
def can(path):
    try:
        os.listdir(path)
        return True
    except OSError:
        return False
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))]
print(json.dumps({"uid": os.getuid(), "caps": caps, "ground": can(os.environ["GROUND"]), "here": sorted(os.listdir())}))
open("written", "w").close()
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with in_box(f"measure-{demo.CLONE}", pool_size="4G"):
        made = Pool(Path("/var/lib/slicemgr/pool"))
        made.ensure_layout()
        made.enable_quota()
        base = names.base_dir(made.path, SHA)
        made.create_subvolume(base)
        (base / "etc").mkdir()
        (base / "etc" / "large").write_bytes(os.urandom(4 * MIB))
        yield made


@pytest.fixture
def measurer(pool: Pool) -> Measurer:
    run_dir = Path("/run/slicemgr")  # the box's own, where the program's user gets by
    run_dir.mkdir(exist_ok=True)
    return Measurer(Config(node=NodeConfig(run_dir=run_dir, pool=pool.path)), pool, threading.Event())


def left(pool: Pool) -> list[str]:
    return [one.name for one in (pool.path / "slivers").iterdir()]


@pytest.mark.parametrize("root", ["snapshot", "overlay", "copy"])
@pytest.mark.parametrize(("what", "size"), [("files", 20), ("sqlite", 200_000)])
def test_each_root_is_made_read_and_written(pool: Pool, measurer: Measurer, root: str, what: str, size: int) -> None:
    before = pool.space().used
    found: dict[str, Any] = measurer.io([IMAGE], {**ASKED, "root": root, "what": what, "size": size})
    assert all(found[name] > 0 for name in ("make", "read", "write", "sync")), found
    assert left(pool) == [] and "measured" not in Path("/proc/self/mounts").read_text()
    assert pool.space().used - before < 8 * MIB


def test_an_image_that_is_not_there_and_a_pool_that_is_too_small(pool: Pool, measurer: Measurer) -> None:
    with pytest.raises(Refused) as missing:
        measurer.io([], ASKED)
    assert missing.value.code is Code.NOT_FOUND and missing.value.field == "image"
    with pytest.raises(Refused, match="may take"):
        measurer.io([dataclasses.replace(IMAGE, virtual_size=1 << 50)], ASKED)
    assert left(pool) == []


def test_one_at_a_time_and_it_ends_with_the_agent(pool: Pool, measurer: Measurer) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            measurer.io([IMAGE], {**ASKED, "what": "sqlite", "size": 100 * MIB})
        except Failed as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    assert not measurer.is_busy()
    thread.start()
    eventually(lambda: left(pool), "the first one has begun")
    assert measurer.is_busy(), "its ground is no leftover"
    with pytest.raises(Refused, match="a measurement is running"):
        measurer.io([IMAGE], ASKED)
    measurer._stop.set()
    thread.join(300)
    assert "the agent is stopping" in str(raised[0]) and left(pool) == [] and not measurer.is_busy()


def test_what_a_killed_agent_left_is_taken_away(pool: Pool, measurer: Measurer) -> None:
    ground = names.sliver_dir(pool.path, loads._WORK_SPACE)
    pool.create_subvolume(ground)
    pool.snapshot(names.base_dir(pool.path, SHA), ground / "pattern")
    assert "make" in measurer.io([IMAGE], ASKED) and left(pool) == []


# --- confinement: in mounts of their own, without a box ---------------------------------------------------------------


def look(ground: Path, seen: Path, *, confined: bool) -> dict[str, Any]:
    words = ["python3", "-I", "-c", LOOK]
    words = loads.confined(words) if confined else words
    layers = "lowerdir=pattern,upperdir=upper,workdir=work"
    argv = loads.staged(words, ground, "root/data", seen, layers)
    return dict(json.loads(command.run(argv, timeout=60, env={"GROUND": str(ground)})))


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    made = tmp_path / "ground"
    for name in ("pattern/data", "upper", "work", "root"):
        (made / name).mkdir(parents=True)
    (made / "pattern/data/lower").touch()
    os.chown(made / "pattern/data", loads._USER, loads._USER)
    made.chmod(0o700)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    return made


def test_the_program_is_nobody_and_gets_nowhere(ground: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    before = Path("/proc/self/mountinfo").read_text()
    told = look(ground, seen, confined=True)
    assert told == {"uid": loads._USER, "caps": ["0" * 16] * 2, "ground": False, "here": ["lower"]}
    assert (ground / "upper/data/written").exists() and not (ground / "pattern/data/written").exists()
    assert Path("/proc/self/mountinfo").read_text() == before and list(seen.iterdir()) == []


def test_without_the_confinement_it_would(ground: Path, tmp_path: Path) -> None:
    """The control of the test before."""
    seen = tmp_path / "seen"
    seen.mkdir()
    told = look(ground, seen, confined=False)
    assert told["uid"] == 0 and told["ground"] and told["caps"] != ["0" * 16] * 2


def test_it_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    words = loads.confined(["sh", "-c", "echo $$; exec sleep 120"])
    program = f"import subprocess, time\nsubprocess.Popen({words!r})\ntime.sleep(120)\n"
    agent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    time.sleep(0.2)
    agent.send_signal(signal.SIGKILL)
    agent.communicate(timeout=60)
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists(), "the program is gone")

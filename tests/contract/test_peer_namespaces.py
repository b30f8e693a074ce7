"""The real sandbox of `bench peers`, with a network of the test: its isolation and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peer_owner
import pytest

from slicemgr.bench.peers import namespaces
from slicemgr.errors import Failed

Popen = subprocess.Popen[str]


@pytest.fixture
def network() -> Iterator[int]:
    """A process in a separate network, which represents that of the node."""
    with subprocess.Popen(["unshare", "--net", "sleep", "600"]) as holder:
        _until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink())
        yield holder.pid
        holder.kill()


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    (tmp_path / "pool" / "bases").mkdir(parents=True)
    return tmp_path / "pool"


def _within(network: int, *words: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{network}/ns/net", "--", *words]


def _own(network: int, pool: Path) -> tuple[Popen, dict[str, Any]]:
    """An owner with a running sandbox, and the results that it printed."""
    path = os.pathsep.join(one for one in sys.path if one)
    owner = subprocess.Popen(
        _within(network, sys.executable, peer_owner.__file__, str(pool)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())


def _links(network: int) -> list[str]:
    output = subprocess.run(_within(network, "ip", "-o", "link"), check=True, capture_output=True, text=True).stdout
    return [line.split()[1].split("@")[0].rstrip(":") for line in output.splitlines()]


def _sleeps(number: str) -> list[int]:
    """The processes that sleep for this time. Zombies do not count, because they have no command line."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                words = (one / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [int(one.name)] if words[:2] == [b"sleep", number.encode()] else []
    return found


def _until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_place_is_its_own_and_leaves_nothing(network: int, pool: Path) -> None:
    owner, found = _own(network, pool)
    links, forward, run, has_pool, _ = found["lines"]
    assert links.split() == ["lo", "uplink"] and forward == "1" and "peer-was-here" in run and has_pool == "pool"
    assert found["after"] == [] and _links(network) == ["lo", "bench-0123abcd"]
    assert found["forwarded"] == ["SSH-2.0-owner", ""]
    owner.communicate("end\n", timeout=60)
    os.kill(found["outside"], 9)
    assert owner.returncode == 0 and _links(network) == ["lo"]
    assert [one.name for one in pool.iterdir()] == ["bases"]


def test_whatever_kills_the_owner_ends_what_ran_in_the_place(network: int, pool: Path) -> None:
    """Programs that it started outside of the sandbox, the control, keep running."""
    owner, found = _own(network, pool)
    assert len(_sleeps("4321")) == 1
    owner.kill()
    owner.communicate(timeout=60)
    _until(lambda: not _sleeps("4321"))
    _until(lambda: _sleeps("4322") == [found["outside"]])
    os.kill(found["outside"], 9)
    _until(lambda: _links(network) == ["lo"])
    assert [one.name for one in pool.iterdir()] != ["bases"]
    namespaces.remove(pool, peer_owner.PREFIX)
    assert [one.name for one in pool.iterdir()] == ["bases"]


def test_a_process_is_found_by_its_group_and_its_own_network(network: int) -> None:
    group = Path(f"/proc/{network}/cgroup").read_text().splitlines()[0].rpartition(":")[2]
    own = Path("/proc/self/ns/net").readlink()
    assert Path(f"/proc/{namespaces.inside(group)}/ns/net").readlink() != own
    with pytest.raises(Failed, match="no process of no-such-group was found"):
        namespaces.inside("no-such-group")

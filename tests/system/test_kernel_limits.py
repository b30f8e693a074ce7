"""What one lxc sliver could take from another, or from the node, by the kernel's own bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, parse_lines, tiny_node

from slicemgr.drivers.place import Place
from slicemgr.model import MIB, Sliver

PROBES = ("probe_memory",)


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("limits"), f"limits-{demo.CLONE}", *PROBES) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def boot(
    slivers: Slivers, probe: str, rc: str, place: Place | None = None, **limits: int | float | None
) -> tuple[Sliver, int]:
    sliver = slivers.new(**limits)
    files = {"bin/probe": slivers.config.node.pool.parent / probe}
    make_root(slivers.root(sliver), rc=rc, files=files)
    return sliver, slivers.start(sliver, place)


EXHAUST = """
cat /proc/self/oom_score_adj > /root/inherited
(echo -1 > /proc/self/oom_score_adj) 2> /dev/null && touch /root/lowered
(echo 600 > /proc/self/oom_score_adj && echo 500 > /proc/self/oom_score_adj) && touch /root/raised
touch /root/begun
/bin/probe > /root/found
sleep 1000
"""


def test_a_sliver_that_exhausts_its_memory_goes_on(slivers: Slivers) -> None:
    sliver, init = boot(slivers, "probe_memory", EXHAUST, memory=48 * MIB)
    root = slivers.root(sliver) / "root"
    found = slivers.hypervisor.domain(sliver.id)
    assert found is not None
    scores = [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in (found.pid, init)]
    assert scores == (["-900", "0"] if _may_lower() else ["0", "500"])
    eventually(lambda: (root / "found").exists() and (root / "found").read_text())
    assert parse_lines((root / "found").read_text()) == {"killed": "10"}
    assert (root / "inherited").read_text().strip() == scores[1]
    assert not (root / "lowered").exists()
    assert (root / "raised").exists()
    again = slivers.hypervisor.domain(sliver.id)
    assert again is not None and again.pid == found.pid and Path(f"/proc/{init}").exists()


def _may_lower() -> bool:
    """Whether root of this machine has CAP_SYS_RESOURCE."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")]
    return bool(int(line.split()[1], 16) & 1 << 24)


def test_without_protection_the_kernel_ends_the_sliver_instead(slivers: Slivers, tmp_path: Path) -> None:
    place = slivers.weakened(tmp_path, "    protect_from_oom();\n", "    expose_to_oom(init);\n")
    sliver, _ = boot(slivers, "probe_memory", EXHAUST, place, memory=48 * MIB)
    eventually(lambda: slivers.hypervisor.domain(sliver.id) is None)
    root = slivers.root(sliver) / "root"
    assert (root / "begun").exists()
    assert (root / "found").read_text() == ""

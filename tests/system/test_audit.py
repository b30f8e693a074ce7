"""`slicectl audit` on a node: what it finds, what it leaves, and that its probe finds the holes of a control."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import demo
import pytest
from testbed import BIN, IMAGE, Node
from testbed import eventually as on_node
from tiny_sliver import Slivers, eventually, make_root, tiny_node

from slicemgr.audit import checks
from slicemgr.audit.checks import Check, Target
from slicemgr.audit.sliver import PROGRAM
from slicemgr.drivers import capabilities, cgroup

# What needs a pool or more than one sliver of a node is not asked of a tiny sliver.
NOT_TINY = {"table 3: quota", "table 3: mount points", "requests to the pool"}
# What a container that libvirt makes by itself gets wrong. The rest it gets right without our doing.
HOLES = {
    "table 3: hostname",
    "table 3: sysfs",
    "table 3: procfs",
    "table 3: procfs, writable",
    "table 3: devpts",
    "system calls, 64 bit",
    "system calls, 32 bit",
    "socket families, 64 bit",
    "socket families, 32 bit",
    "capabilities",
    "processes",
    "packet ring, large",
    "packet rings, sum",
    "fragments' threshold",
}


def leftovers(node: Node) -> list[str]:
    """Projects and slices of audits."""
    with node.client() as admin:
        named = [*admin.projects(), *admin.slices()]
    return [one["name"] for one in named if one["name"].startswith("audit-")]


def test_every_check_passes_and_nothing_is_left(node: Node) -> None:
    done = node.slicectl("audit", "--type", "lxc", "--image", IMAGE, "-f", "json", timeout=1800)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    failed = [one for one in found["rows"] if one["verdict"] != "pass"]
    assert not failed
    assert (done.returncode, found["failed"]) == (0, 0)
    assert {one["kind"] for one in found["rows"]} >= {"lxc", "node", "rest"}
    assert leftovers(node) == []
    assert json.loads(node.ok("audit", "--last", "-f", "json")) == found


def test_a_killed_audit_is_cleaned_up(node: Node) -> None:
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    words = [str(BIN / "slicectl"), "audit", "--type", "lxc", "--image", IMAGE]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as audit:
        on_node(lambda: any(one.endswith("-lxc") for one in leftovers(node)), "the audit has asked for slices", 600)
        audit.send_signal(signal.SIGKILL)
    on_node(lambda: leftovers(node) == [], "the watchdog has deleted what the audit made", 600)


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("audit"), f"audit-{demo.CLONE}") as made:
        yield made


def probed(slivers: Slivers, *, confined: bool) -> dict[str, bool]:
    """Which checks pass in a sliver, with all that confines it or as libvirt alone makes it."""
    sliver = slivers.new(pids=64)
    target = Target(
        sliver.slice_name, sliver.limits.memory, 64 << 20, 64, 2, 64, capabilities.bounding_set(), cgroup.version()
    )  # fmt: skip
    asked = [one for one in checks.INSIDE if one.row not in NOT_TINY]
    groups = list(dict.fromkeys(tuple(map(str, one.words(target))) for one in asked))
    lines = [f"/bin/probe {' '.join(words)} < /dev/null >> /root/found-{place}" for place, words in enumerate(groups)]
    root = make_root(slivers.root(sliver), rc="\n".join([*lines, "touch /root/done"]), files={"bin/probe": PROGRAM})
    if confined:
        slivers.start(sliver)
    else:
        root, _ = slivers.start_unconfined(sliver)
    eventually((root / "root/done").exists, 300)

    def passes(check: Check) -> bool:
        place = groups.index(tuple(map(str, check.words(target))))
        values = checks.parse((root / f"root/found-{place}").read_text())
        return checks.judged(check, "lxc", values, target).ok

    return {one.row: passes(one) for one in asked}


def test_the_probe_finds_the_holes_of_a_container_without_our_confinement(slivers: Slivers) -> None:
    found = probed(slivers, confined=False)
    assert {row for row, ok in found.items() if not ok} >= HOLES


def test_and_none_in_one_that_is_confined(slivers: Slivers) -> None:
    assert [row for row, ok in probed(slivers, confined=True).items() if not ok] == []

"""bench lifecycle: both kinds in one run, each beside its raw baseline, and nothing is left."""

from __future__ import annotations

import json

from testbed import Node


def test_a_machine_beside_a_container(node: Node) -> None:
    node.ensure_machines()
    words = ("--type", "lxc", "--type", "kvm", "--boot", "direct", "--memory", "192M")
    told = json.loads(
        node.ok("bench", "lifecycle", *words, "--count", "1", "--parallel", "1", "-f", "json", timeout=500)
    )
    times = {(one["phase"], one["type"]): one["p50"] for one in told["phases"]}
    ours = [times[phase, "kvm direct"] for phase in ("accepted", "created", "console", "ssh banner")]
    assert ours == sorted(ours) and ours[0] > 0
    raw = [times[f"raw: {phase}", "kvm direct"] for phase in ("created", "console", "ssh banner")]
    assert raw == sorted(raw) and raw[0] > 0
    assert ("console", "lxc") not in times and times["ssh banner", "lxc"] > times["accepted", "lxc"]
    totals = {one["type"]: one for one in told["totals"]}
    assert set(totals) == {"lxc", "kvm direct"}
    assert totals["kvm direct"]["memory_each"] > totals["lxc"]["memory_each"] > 0
    assert all(one["create_ratio"] > 0 and one["disk_each"] is not None for one in totals.values())
    assert json.loads(node.ok("list", "-f", "json")) == []


def test_an_image_that_is_not_there_is_told(node: Node) -> None:
    node.ensure_machines()
    said = node.slicectl("bench", "lifecycle", "--type", "kvm", "--image", "no-such-image", "--count", "1")
    assert said.returncode != 0 and "no-such-image" in said.stderr
    assert json.loads(node.ok("list", "-f", "json")) == []

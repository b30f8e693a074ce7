"""bench lifecycle: what its steps and times are made into."""

from __future__ import annotations

from typing import cast

import click
import pytest

from slicemgr import wire
from slicemgr.bench import lifecycle, report
from slicemgr.bench.lifecycle import Outcome
from slicemgr.cli import bench

RAW: wire.Baseline = {"started": [1.0, 1.0], "spoke": [], "answered": [2.0, 4.0], "create": 4.0, "delete": 1.0}
LXC = Outcome(
    RAW,
    {"accepted": [0.1, 0.1], "created": [1.5, 1.5], "operation": [2.0, 3.0], "banner": [3.0, 6.0]},
    create=6.0,
    delete=2.0,
    charged=100.0,
)
KVM = Outcome({**RAW, "spoke": [1.5, 2.0]}, {"console": [2.0, 3.0], "banner": [4.0, 8.0]}, create=8.0, delete=3.0)


def _operation(*steps: tuple[str, str, str]) -> wire.Operation:
    return cast("wire.Operation", {"steps": [{"name": n, "state": s, "detail": d} for n, s, d in steps]})


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        ([("domain", "running", "")], set()),
        ([("domain", "done", ""), ("ssh", "running", "")], {"created"}),
        ([("domain", "done", ""), ("ssh", "running", "the guest speaks")], {"created", "console"}),
        ([("domain", "done", ""), ("ssh", "done", "not verified: no banner")], {"created"}),
    ],
)
def test_what_the_steps_say(steps: list[tuple[str, str, str]], phases: set[str]) -> None:
    assert lifecycle.reached(_operation(*steps)) == phases


def test_series_stand_side_by_side_in_each_phase() -> None:
    rows = report.rows({"lxc": LXC, "kvm direct": KVM})
    assert [(one["phase"], one["type"]) for one in rows] == [
        ("raw: created", "lxc"),
        ("raw: created", "kvm direct"),
        ("raw: console", "kvm direct"),
        ("raw: ssh banner", "lxc"),
        ("raw: ssh banner", "kvm direct"),
        ("accepted", "lxc"),
        ("created", "lxc"),
        ("console", "kvm direct"),
        ("operation done", "lxc"),
        ("ssh banner", "lxc"),
        ("ssh banner", "kvm direct"),
    ]
    ratios = {(one["phase"], one["type"]): one["ratio"] for one in rows if one["ratio"] is not None}
    assert ratios == {("console", "kvm direct"): 1.5, ("ssh banner", "lxc"): 1.5, ("ssh banner", "kvm direct"): 2.0}


def test_totals_are_ratios_to_the_series_own_baseline() -> None:
    lxc, kvm = report.totals({"lxc": LXC, "kvm direct": KVM})
    assert (lxc["create_ratio"], lxc["delete_ratio"], lxc["last_to_first"]) == (1.5, 2.0, 2.0)
    assert (lxc["memory_each"], lxc["disk_each"], lxc["count"]) == (100.0, None, 2)
    assert (kvm["type"], kvm["create_ratio"]) == ("kvm direct", 2.0)


@pytest.mark.parametrize(
    ("given", "images"),
    [
        ((), bench.IMAGES),
        (("one",), {"lxc": "one", "kvm": "one"}),
        (("kvm=two", "one"), {"lxc": "one", "kvm": "two"}),
        (("lxc=one",), {**bench.IMAGES, "lxc": "one"}),
    ],
)
def test_images_of_each_type(given: tuple[str, ...], images: dict[str, str]) -> None:
    command = bench.lifecycle
    option = next(one for one in command.params if one.name == "images")
    assert bench.images(click.Context(command), option, given) == images


def test_an_image_of_no_type_is_refused() -> None:
    command = bench.lifecycle
    option = next(one for one in command.params if one.name == "images")
    with pytest.raises(click.BadParameter, match="'xen' is no type"):
        bench.images(click.Context(command), option, ("xen=one",))

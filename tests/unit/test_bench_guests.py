"""bench guests: its steps, what its loads read from programs, and what its report makes of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slicemgr.bench.experiments import guests as experiment
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import guests as report
from slicemgr.bench.report.content import Aim
from slicemgr.cli.bench import guests as command
from slicemgr.client import Client
from slicemgr.loads import guest as loads

MIB = 1 << 20


def parameters(*names: str, repeat: int = 1) -> experiment.GuestsParameters:
    chosen = experiment.with_images(names, {"thin": "other"})
    return experiment.GuestsParameters(Client.local, chosen, "n1", ("key", b""), "p-", repeat=repeat)


def test_the_steps_take_turns_and_find_the_least_memory_once() -> None:
    steps = experiment.steps(parameters("lxc", "small", "thin", repeat=2))
    ids = [one.id for one in steps]
    assert len(set(ids)) == len(ids)
    assert sorted(one for one in ids if "/least" in one) == ["1/small/least", "1/thin/least"]
    assert {one.partition("/")[0] for one in ids} == {"1", "2"}
    assert all(
        ids.index(f"{one.rpartition('/')[0]}/start") < ids.index(one) for one in ids if not one.endswith("start")
    )


def test_an_image_can_be_another_one() -> None:
    assert [one.image for one in parameters("lxc", "thin").guests] == ["debian-12", "other"]


def test_the_command_names_every_guest() -> None:
    assert tuple(experiment.GUESTS) == command._GUESTS
    assert command._GUESTS[: len(command._USUAL)] == command._USUAL


def test_what_load_generators_print() -> None:
    said = '"test","rps","avg_latency_ms"\n"SET","25641.03","0.19"\n"GET","27027.03","0.17"\n'
    assert loads.redis_rates(said) == [25641.03, 27027.03]
    assert loads.wrk_rate("Running 1s test\nRequests/sec:   1234.50\nTransfer/sec: 1MB\n") == 1234.5


@pytest.mark.parametrize("said", ["", "Requests/sec: 10\n  Non-2xx or 3xx responses: 10\n"])
def test_a_load_generator_that_measured_nothing(said: str) -> None:
    with pytest.raises(ValueError, match="no rate"):
        loads.wrk_rate(said)
    with pytest.raises(ValueError, match="no rate"):
        loads.redis_rates(said)


def test_a_load_without_its_program_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert loads.run("redis", 1) == {"missing": "there is no redis-server"}


def test_python_passes_messages() -> None:
    rate = loads.run("python", 0.1)["rate"]
    assert isinstance(rate, float) and rate > 0


def measured(banner: float, *, idle: int, rate: float, size: int = 0, least: int | None = None) -> list[dict[str, Any]]:
    phases = {"started": [banner / 4], "console": [banner / 2], "banner": [banner, banner]}
    found = [
        {"phases": phases, "working": [idle * MIB], "release": "6.1", "kernel_size": size},
        {
            "operations": dict.fromkeys(experiment.OPERATIONS, 100.0),
            "rates": {"redis": rate},
            "missing": {"nginx": "no"},
        },
    ]
    return [*found, {"least": least}] if least else found


def run(by_guest: Mapping[str, list[dict[str, Any]]], acceleration: str = "emulation") -> Run:
    steps = {
        f"1/{name}/{number}": {"data": {"guest": name, "turn": 1, **data}, "series": f"1/{name}", "title": name}
        for name, each in by_guest.items()
        for number, data in enumerate(each)
    }
    info = {"parameters": {"guests": [{"name": name} for name in by_guest]}, "node": {"acceleration": acceleration}}
    return Run(Path(), info, steps)


def aims(by_guest: Mapping[str, list[dict[str, Any]]], acceleration: str = "emulation") -> dict[str, Aim]:
    return {one.text.partition(":")[0]: one for one in report.content(run(by_guest, acceleration)).aims}


SMALL = measured(8.0, idle=300, rate=1000, size=15 * MIB, least=160 * MIB)
GOOD = measured(1.0, idle=150, rate=1200, size=3 * MIB, least=48 * MIB)
BAD = measured(4.0, idle=250, rate=1050, size=5 * MIB)


def test_each_aim_has_its_verdict() -> None:
    good, bad = aims({"small": SMALL, "thin": GOOD}), aims({"small": SMALL, "thin": BAD})
    decided = [name for name, one in good.items() if one.reached is not None]
    assert decided == [
        "the thin kernel has at most 4 MiB, compressed",
        "from the request to ssh",
        "idle, it uses at most 64 MiB and 128 MiB of translated code of the node",
        "redis",
    ]
    assert all(good[name].reached for name in decided)
    assert not any(bad[name].reached for name in decided)
    assert good["nginx"] == Aim("nginx: at least 1.1 × Debian's kernel (small)", None, "not measured")


def test_only_emulation_has_translated_code() -> None:
    under_kvm = aims({"small": SMALL, "thin": GOOD}, "kvm")
    assert under_kvm["idle, it uses at most 64 MiB of the node"].reached is False


def test_the_report_has_a_row_for_each_guest() -> None:
    content = report.content(run({"small": SMALL, "thin": GOOD}))
    sizes = content.tables[0].rows
    assert [row[0] for row in sizes] == ["small", "thin"]
    assert [row[3:] for row in sizes] == [[15.0, 300.0, 160], [3.0, 150.0, 48]]
    assert [one["guest"] for one in content.data] == ["small", "thin"]
    assert any("0.12 × small" in said or "0.13 × small" in said for said in content.outcome)
    assert [plot.name for plot in content.plots] == ["start", "throughput"]


def test_a_run_without_a_start_has_no_report() -> None:
    with pytest.raises(ValueError, match="no guest"):
        report.content(run({"thin": []}))

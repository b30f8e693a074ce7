"""bench memory: the loads, what the agent records, and the verdicts of the report."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_service import Service
from test_loads import run

from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.measurements.pressure import Pressure
from slicemgr.bench.experiments import memory as experiment
from slicemgr.bench.experiments import memory_loads
from slicemgr.bench.experiments import memory_setting as setting
from slicemgr.bench.frame import timed_load
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import memory as report
from slicemgr.bench.report import memory_repetitions as repetitions
from slicemgr.client import Client
from slicemgr.drivers.kernel import counters
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.errors import Failed, Refused
from slicemgr.loads import memory as load
from slicemgr.model import GIB, MIB
from slicemgr.policy import measurements

SECONDS = 5  # before the pressure, of the runs below


# --- the loads --------------------------------------------------------------------------------------------------------


def test_a_file_is_made_and_read(tmp_path: Path) -> None:
    assert run("memory.py", "make", str(3 * MIB + 5), "1", cwd=tmp_path) == {"made": 3 * MIB + 5}
    assert (tmp_path / load.FILE).stat().st_size == 3 * MIB + 5
    found = run("memory.py", "read", str(3 * MIB), "2", "1", cwd=tmp_path)
    assert len(found["each_second"]) == 2 and min(found["each_second"]) > 0
    assert len(found["p99"]) == 2
    for rate, p99 in zip(found["each_second"], found["p99"], strict=True):
        assert p99 > 0.5e6 / rate, "99 % of the reads take less, so it is no less than half of the mean"


def test_a_second_without_a_read_has_the_values_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause after slow reads can be longer than a second."""
    monkeypatch.chdir(tmp_path)
    load.make(MIB, 1)

    def seconds(some: Callable[[], int], _: float) -> Iterator[int]:
        yield 0
        yield some()
        yield 0

    monkeypatch.setattr(load, "each_second", seconds)
    first, second, third = load.read(lambda: None, MIB, 3, 1)
    assert first == (0, 0.0) and second[0] > 0 and second[1] > 0 and third == second


def test_the_third_sliver_reads_no_faster_than_it_may_and_no_disk(tmp_path: Path) -> None:
    found = run("memory.py", "stream", str(20 * MIB), "1", "0", "2", str(64 * MIB), cwd=tmp_path)
    assert found["each_second"][0] <= 2 * MIB, "it waits for a second"
    assert 0 < sum(found["each_second"]) <= 2 * 20 * MIB + 2 * MIB
    assert (tmp_path / load.STREAM).stat().st_blocks == 0


def test_memory_is_held(tmp_path: Path) -> None:
    found = run("memory.py", "hold", str(8 * MIB), "2", cwd=tmp_path)
    assert found["each_second"] == [8 * MIB, 8 * MIB]
    assert run("memory.py", "lock", str(MIB), "1", cwd=tmp_path)["each_second"] == [MIB]


def test_memory_is_touched_and_timed(tmp_path: Path) -> None:
    found = run("memory.py", "touch", str(3 * MIB + 5), "2", "1", cwd=tmp_path)
    assert len(found["each_second"]) == len(found["p99"]) == 2 and min(found["each_second"]) > 0


@pytest.mark.parametrize("hog", ["rewrite", "update"])
def test_the_other_sliver_writes_no_faster_than_it_may(hog: str, tmp_path: Path) -> None:
    found = run("memory.py", hog, str(20 * MIB), "2", str(64 * MIB), cwd=tmp_path)
    assert 0 < sum(found["each_second"]) <= 2 * 20 * MIB + 2 * MIB


def test_the_other_sliver_uses_as_much_as_its_phase_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is anonymous, whose pages are resident when they were written to."""
    held, own = list[int](), Path("/proc/self/smaps_rollup")

    def anonymous() -> int:
        (line,) = (one for one in own.read_text().splitlines() if one.startswith("Anonymous:"))
        return int(line.split()[1]) << 10

    before = anonymous()
    for _ in load.rewrite(lambda: None, 400 * MIB, [(1, 0), (1, 4 * MIB), (2, 160 * MIB), (1, 4 * MIB)]):
        held.append(anonymous() - before)
    nothing, little, _, much, back = held
    assert nothing < 3 * MIB and little < 12 * MIB and much > 60 * MIB and back < 12 * MIB


def test_stress_ng_uses_memory(tmp_path: Path) -> None:
    program = tmp_path / load.STRESS
    program.parent.mkdir(parents=True)
    sent = memory_loads.stress_program()
    subprocess.run(["sh", "-c", sent.unpack(str(program.parent))], input=sent.archive, check=True, capture_output=True)
    found = run("memory.py", "stress", "1", "1", "0", "3", str(256 * MIB), cwd=tmp_path)
    assert len(found["each_second"]) == 4 and not found["each_second"][0] and sum(found["each_second"]) > 128 * MIB


# --- a load that waits ------------------------------------------------------------------------------------------------


def begun(tmp_path: Path, *arguments: str, names: tuple[str, ...] = ("each_second",)) -> Any:
    """A load of this machine, as in a sliver."""
    words = ["env", "-C", str(tmp_path), "sh", "-c"]
    return timed_load.start("low", words, "memory.py", arguments, names, 60.0)


def test_a_load_waits_until_it_is_to_begin(tmp_path: Path) -> None:
    with begun(tmp_path, "touch", str(MIB), "1", "1", names=("each_second", "p99")) as load_:
        load_.wait()
        before = time.time()
        load_.begin()
        found = load_.series(1)
    assert found["at"] >= before and len(found["each_second"]) == len(found["p99"]) == 1 and "killed" not in found


def test_the_numbers_of_a_killed_load_are_known_and_then_zero(tmp_path: Path) -> None:
    with begun(tmp_path, "hold", str(MIB), "60") as load_:
        load_.wait()
        load_.begin()
        time.sleep(2.5)
        os.killpg(load_._conversation._process.pid, signal.SIGKILL)
        found = load_.series(6)
    assert found["killed"] and found["each_second"][0] > 0 and found["each_second"][3:] == [0, 0, 0]


@pytest.mark.parametrize("arguments", [("nothing",), ("hold", "x", "1")])
def test_a_load_that_fails_is_no_load_that_was_killed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with begun(tmp_path, *arguments) as load_, pytest.raises(Failed, match="low: a load failed"):
        load_.wait()


# --- the node ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def controller(tmp_path: Path) -> Any:
    with Service(tmp_path) as service:
        yield MemoryController(service.config, service.store)


def test_the_agent_holds_memory_and_records_each_second(controller: MemoryController) -> None:
    modes, memory = list[str](), Memory(GIB, GIB, GIB)

    def measure() -> Memory:
        modes.append(controller.mode)
        controller.total += 3
        return memory

    params = measurements.memory({"bytes": 8 * MIB, "before": 1, "hold": 2, "after": 1, "controller": "on"})
    found = Pressure(controller, threading.Event(), measure).measure(params)
    assert found["available"] == found["free"] == [GIB] * 4
    assert found["taken"] == [3, 6, 9, 12] and found["cpu"] == 0
    assert (modes, controller.mode) == (["observe", *["on"] * 4], "observe"), "it works as before afterwards"


def test_more_than_the_node_has_is_refused(controller: MemoryController) -> None:
    pressure = Pressure(controller, threading.Event(), lambda: Memory(GIB, 500 * MIB, 0))
    with pytest.raises(Refused, match="460 MiB are too many: 500 MiB of the node's memory are available"):
        pressure.measure(measurements.memory({"bytes": 460 * MIB}))
    assert pressure.measure(measurements.memory({"bytes": 440 * MIB}))["taken"] == [], "the control"


def test_what_can_go_to_swap_is_room(controller: MemoryController) -> None:
    pressure = Pressure(controller, threading.Event(), lambda: Memory(GIB, 500 * MIB, 0, 100 * MIB, 200 * MIB))
    match = "560 MiB are too many: 500 MiB of the node's memory and 100 MiB of its swap are available"
    with pytest.raises(Refused, match=match):
        pressure.measure(measurements.memory({"bytes": 560 * MIB}))
    assert pressure.measure(measurements.memory({"bytes": 540 * MIB}))["taken"] == [], "the control"


def test_the_bytes_can_be_locked_and_the_work_of_the_kernel_is_counted(controller: MemoryController) -> None:
    params = measurements.memory({"bytes": 80 * MIB, "before": 1, "hold": 2, "after": 1, "locked": True, "swap": True})
    before = counters.meminfo()["Mlocked"]
    locked = list[int]()

    def measure() -> Memory:
        locked.append(counters.meminfo()["Mlocked"])
        return Memory(GIB, GIB, GIB)

    found = Pressure(controller, threading.Event(), measure).measure(params)
    assert max(locked) - before > 60 * MIB
    kernel = found["kernel"]
    assert isinstance(kernel, dict)
    assert {"pgscan_kswapd", "pgsteal_direct"} <= kernel.keys() and min(kernel.values()) >= 0


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"bytes": 1, "locked": "yes"}, "locked"),
        ({"bytes": 1, "swap": 1}, "swap"),
        ({}, "bytes"),
        ({"bytes": -1}, "bytes"),
        ({"bytes": 1, "hold": 601}, "hold"),
        ({"bytes": 1, "controller": "x"}, "controller"),
    ],
)
def test_wrong_parameters_name_the_field(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        measurements.memory(raw)
    assert caught.value.field == field


V1 = {"memory.limit_in_bytes": 2 * GIB, "memory.usage_in_bytes": GIB}
V2 = {"memory.max": 2 * GIB, "memory.current": GIB}


@pytest.mark.parametrize(("files", "place", "prefix"), [(V1, "memory", "total_"), (V2, ".", "")], ids=["v1", "v2"])
def test_the_memory_of_a_node_in_a_group_is_the_limit_of_the_group(
    files: dict[str, int], place: str, prefix: str, tmp_path: Path
) -> None:
    directory = tmp_path / place
    directory.mkdir(exist_ok=True)
    for name, value in files.items():
        (directory / name).write_text(f"{value}\n")
    (directory / "memory.stat").write_text(f"{prefix}inactive_file {256 * MIB}\n{prefix}active_file {128 * MIB}\n")
    whole = counters.memory(tmp_path / "none")
    assert whole.total > 2 * GIB, "the machine's own"
    found = counters.memory(tmp_path)
    assert (found.total, found.swap) == (2 * GIB, whole.swap)
    assert found.free == min(GIB, whole.free) and found.available == min(GIB + 384 * MIB, whole.available)
    (directory / next(iter(files))).write_text("max\n" if place == "." else f"{(1 << 63) - 4096}\n")
    assert counters.memory(tmp_path).total == whole.total, "a group without a limit"


# --- the experiment and its report ------------------------------------------------------------------------------------


def test_a_repetition_has_each_configuration_once_in_an_order_of_its_own() -> None:
    parameters = experiment.MemoryParameters(lambda: Client("http://127.0.0.1:1", "x"), "n", ("", b""), "b-", repeat=9)
    found = experiment.steps(parameters)
    orders = [tuple(one.work.configuration for one in found if one.work.turn == turn) for turn in range(1, 10)]
    assert all(sorted(one) == sorted(experiment.configurations("v1")) for one in orders) and len(set(orders)) > 2
    assert [one.id for one in found] == [one.id for one in experiment.steps(parameters)]


def test_a_kernel_of_v1_is_not_measured_with_guarantees_that_it_does_not_know() -> None:
    assert set(setting.CONFIGURATIONS) - set(experiment.configurations("v1")) == {setting.GUARANTEE}
    assert set(experiment.configurations("v2")) == set(setting.CONFIGURATIONS)


def test_slivers_are_promised_memory_one_to_two() -> None:
    for configuration in setting.CONFIGURATIONS:
        found = setting.sizes(configuration, 2 * GIB)
        low, high, hog = (found[name] for name in ("low", "high", "hog"))
        assert high.guarantee == pytest.approx(2 * low.guarantee, rel=0.01) and hog.guarantee == 0
        assert low.file < low.guarantee and high.file < high.guarantee, "it fits"
        static = configuration == setting.STATIC
        assert [one.limit == one.guarantee for one in (low, high)] == [static, static]


@pytest.mark.parametrize("configuration", setting.CONFIGURATIONS)
@pytest.mark.parametrize("slivers", [2, 4, 8])
def test_more_slivers_share_the_same_promise(configuration: str, slivers: int) -> None:
    usual, found = (setting.sizes(configuration, 4 * GIB, setting.Setting(slivers=n)) for n in (2, slivers))
    promised = [sum(one.guarantee for one in each.values()) for each in (usual, found)]
    assert promised[1] == pytest.approx(promised[0], rel=0.02) and len(found) == slivers + 1
    for title in (setting.LOW, setting.HIGH):
        assert len(setting.of_kind(found, title)) == slivers // 2


def test_one_knob_at_a_time_is_varied() -> None:
    found = setting.variants(setting.Setting(), ["usage=80,120", "workload=memory"])
    assert [one.name for one in found] == ["", "usage=120", "workload=memory"], "80 is the base"
    assert found[1].setting == setting.Setting(usage=120)
    parameters = experiment.MemoryParameters(
        lambda: Client("http://127.0.0.1:1", "x"), "n", ("", b""), "b-", ("kernel",), repeat=1, variants=tuple(found)
    )
    assert [one.id for one in experiment.steps(parameters)] == [
        "1/kernel", "1/kernel/usage=120", "1/kernel/workload=memory"
    ]  # fmt: skip


def test_every_workload_has_a_program() -> None:
    assert tuple(memory_loads.WORKLOADS) == setting.WORKLOADS


@pytest.mark.parametrize(
    ("varied", "field"),
    [
        ("usage", "--vary"),
        ("usage=", "--vary"),
        ("speed=1", "--vary"),
        ("usage=-1", "--vary"),
        ("usage=²", "--vary"),
        ("usage=99999", "--usage"),
        ("slivers=3", "--slivers"),
        ("ceiling=50", "--ceiling"),
        ("workload=x", "--workload"),
    ],
)
def test_a_knob_that_cannot_be_varied_so_is_refused(varied: str, field: str) -> None:
    with pytest.raises(Refused) as caught:
        setting.variants(setting.Setting(), [varied])
    assert caught.value.field == field


def step(
    turn: int, configuration: str, kept: tuple[float, float], back: int = 0, late: float = 0.0, slower: float = 0.0
) -> dict[str, Any]:
    """back: seconds after the pressure until the speed is that of before. slower: of 99 % of the reads; 0: unknown."""

    def rates(part: float) -> list[float]:
        long = SECONDS + SECONDS // 2
        whole, pressed = SECONDS, 3 * SECONDS - SECONDS
        return [1000.0] * whole + [1000.0 * part] * (pressed + back) + [1000.0] * (long * 4 - whole - pressed - back)

    node = {"at": 100.0, "cpu": 0.1, **dict.fromkeys(("available", "free"), [MIB] * 4 * SECONDS)}
    slivers = {
        name: {
            "guarantee": MIB,
            "limit": MIB,
            "file": MIB,
            "at": 100.0 + late,
            "each_second": rates(part)[: 4 * SECONDS],
        }
        for name, part in zip(("low", "high"), kept, strict=True)
    }
    if slower:
        p99 = [2.0] * SECONDS + [2.0 * slower] * 2 * SECONDS + [2.0] * SECONDS
        p99[SECONDS * 2] = 1000.0  # one second of many
        slivers = {name: {**one, "p99": p99} for name, one in slivers.items()}
    hog = {"guarantee": 0, "limit": GIB, "file": GIB, "at": 100.0, "each_second": [5.0] * 2 * SECONDS}
    node["taken"] = [7 * MIB] * 4 * SECONDS
    return {
        "turn": turn,
        "configuration": configuration,
        "memory": 2 * GIB,
        "node": node,
        "slivers": {**slivers, "hog": hog},
    }


def result(*steps: dict[str, Any]) -> Run:
    found = {f"{one['turn']}/{one['configuration']}": {"data": one} for one in steps}
    return Run(Path("run"), {"experiment": "memory", "parameters": {}}, found)


def verdicts(
    kept: tuple[float, float], back: int = 0, turns: int = 5, late: float = 0.0, slower: float = 1.1
) -> list[bool | None]:
    steps = [step(turn, "controller", kept, back, late, slower) for turn in range(1, turns + 1)]
    return [one.reached for one in report.content(result(*steps)).aims]


def test_the_verdicts_follow_from_what_was_measured() -> None:
    assert verdicts((0.96, 0.97)) == [True, True, True, True, True]
    assert verdicts((0.96, 0.93), back=1) == [False, False, True, True, True]
    assert verdicts((0.9, 0.96), back=SECONDS) == [False, True, False, True, True]
    assert verdicts((0.96, 0.97), slower=1.25) == [True, True, True, True, False]
    assert verdicts((0.96, 0.97), slower=0.0) == [True, True, True, True, None], "a run of an earlier version"
    assert verdicts((0.96, 0.97), turns=4) == [None] * 5, "too few repetitions"
    assert [one.reached for one in report.content(result(step(1, "kernel", (1, 1)))).aims] == [None] * 5


def test_slivers_are_compared_with_themselves_beside_the_further_sliver() -> None:
    """It takes 10 % of their speed by its work, and 5 % of the rest for want of memory."""
    data = step(1, "controller", (1, 1))
    speeds = [1000.0] * SECONDS + [900.0] * SECONDS + [855.0] * 2 * SECONDS + [900.0] * SECONDS
    for name in ("low", "high"):
        data["slivers"][name] |= {"each_second": speeds}
    data["slivers"]["hog"]["each_second"] = [0.0] * SECONDS + [1.0] * SECONDS + [5.0] * 2 * SECONDS + [1.0] * SECONDS
    data["node"]["taken"] = [7 * MIB] * 5 * SECONDS
    (one,) = repetitions.measured(result({**data, "alone": SECONDS}))
    assert one.kept("low") == pytest.approx(0.95) and one.of_alone("high") == pytest.approx(0.9)
    assert one.back("low") == 0 and set(one.hog) == {5.0} and (one.begin, one.end) == (2 * SECONDS, 4 * SECONDS)
    content = report.content(result({**data, "alone": SECONDS}))
    assert next(mark.label for mark in content.plots[0].marks) == "the further sliver works"
    (old,) = repetitions.measured(result(step(1, "controller", (1, 1))))
    assert old.of_alone("low") is None and (old.begin, old.end) == (SECONDS, 3 * SECONDS)


def test_a_load_that_began_later_is_moved() -> None:
    (one,) = repetitions.measured(result(step(1, "kernel", (0.5, 0.5), late=2.0)))
    assert one.rates["low"][SECONDS + 1] == 1000 and one.rates["low"][SECONDS + 2] == 500
    assert len(one.rates["low"]) == 4 * SECONDS


@pytest.mark.parametrize("late", [1e12, -1e12])
def test_a_clock_of_a_sliver_can_have_any_time(late: float) -> None:
    (one,) = repetitions.measured(result(step(1, "kernel", (0.5, 0.5), late=late)))
    assert len(one.rates["low"]) == 4 * SECONDS and one.kept("low") == pytest.approx(0.5, abs=0.1)


def test_the_report_compares_the_configurations() -> None:
    turns = range(1, 4)
    steps = [
        step(turn, name, kept) for turn in turns for name, kept in (("kernel", (0.5, 0.4)), ("controller", (1, 1)))
    ]
    content = report.content(result(*steps))
    assert content.outcome == [
        f"With {who}, the slivers that were promised memory 1 : 2 kept {kept} of their speed (3 repetitions)."
        for who, kept in (("the kernel alone", "50.0 % and 40.0 %"), ("the memory controller", "100.0 % and 100.0 %"))
    ]
    assert [one.name for one in content.plots] == ["kernel", "controller", "kept"]
    assert len(content.tables[0].rows) == 4 and len(content.data) == 6
    with pytest.raises(ValueError, match="no repetition"):
        report.content(result())


KERNEL = {"pgsteal_kswapd": 300, "pgsteal_direct": 100, "pgsteal_file": 320, "pgsteal_anon": 80, "pswpout": 256}


def varied(turn: int, configuration: str, kept: tuple[float, float], knob: str = "", **knobs: int) -> dict[str, Any]:
    one = step(turn, configuration, kept)
    one["node"]["kernel"] = KERNEL
    return {**one, "setting": setting.Setting(**knobs).recorded, "knob": knob}  # type: ignore[arg-type]


def matrix() -> Run:
    found = [varied(1, name, kept) for name, kept in (("kernel", (0.5, 0.4)), ("controller", (1, 1)))]
    found += [varied(1, "kernel", (0.9, 0.98), "usage", usage=50), varied(1, "kernel", (0.1, 0.3), "usage", usage=120)]
    found += [
        varied(1, "controller", (1, 0.9), "usage", usage=50),
        varied(1, "kernel", (0.45, 0.4), "ceiling", ceiling=200),
    ]
    steps = {f"{at}": {"data": one} for at, one in enumerate(found)}
    return Run(Path("run"), {"experiment": "memory", "parameters": {}}, steps)


def test_the_matrix_answers_the_questions_with_figures() -> None:
    content = report.content(matrix())
    first, *answers = content.outcome[1:]
    assert first.startswith("With the memory controller"), "the base has its sentences as ever"
    assert len(answers) == 5
    assert "2 MiB in a repetition, 80 % of it page cache" in answers[0] and "1 MiB to swap" in answers[0]
    assert "own thread took 75 %" in answers[1] and "took 25 % themselves" in answers[1]
    assert "usage, from 20 % (120) to 94 % (50)" in answers[2] and "ceiling, from 43 % (200) to 45 % (0)" in answers[2]
    assert "usage" not in answers[3] and "ceiling, from" in answers[3]
    assert "with the kernel alone in 1 of 4 settings" in answers[4].lower()
    assert "with the controller in 1 of 2 settings" in answers[4].lower()
    (table,) = (one for one in content.tables if one.title == "What each knob changes")
    assert [row[0] for row in table.rows] == ["base", "base", "usage=50", "usage=120", "usage=50", "ceiling=200"]
    assert {one.name for one in content.plots} >= {"kept", "knob-usage", "knob-ceiling"}


def test_the_base_alone_has_no_matrix() -> None:
    content = report.content(result(varied(1, "kernel", (1, 1)), varied(1, "controller", (1, 1))))
    assert len(content.outcome) == 2 and [one.name for one in content.plots] == ["kernel", "controller", "kept"]

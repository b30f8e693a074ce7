"""bench throughput by its command line, between two testbeds on paper, with a real iperf3 at a rate that is no load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paper_ends
import pytest
from canned_service import slice as a_slice
from paper_ends import Ends
from paper_testbed import GIB, PaperTestbed

from slicemgr.bench.experiments import throughput
from slicemgr.bench.frame import endpoints, folder, iperf, slivers
from slicemgr.bench.report import pages
from slicemgr.cli import INTERRUPTED, main
from slicemgr.client import Client
from slicemgr.errors import Code, Failed

TABLE = ("--seconds", "2", "--discard", "1", "--interval", "1", "--no-talkers")


class World:
    """The node, its peer, and the link between them."""

    def __init__(self, near: PaperTestbed, far: PaperTestbed, folder: Path) -> None:
        self.near, self.far, self.folder = near, far, folder
        self.ends = Ends(folder / "ends")
        (folder / "peer.json").write_text(json.dumps({"url": far.url, "token": "admin"}))

    @property
    def words(self) -> list[str]:
        options = [*self.ends.options(), "--port", str(_ports(8)), "--output", str(self.run)]
        return ["bench", "throughput", *options, "--peer", str(self.folder / "peer.json")]

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def left(self) -> list[str]:
        """The remaining slices of both ends, and the rate limits of the link."""
        return [*self.near.there, *self.far.there, *self.ends.held]

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "SLICEMGR_URL": self.near.url, "SLICEMGR_TOKEN": "admin"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        argv = [sys.executable, paper_ends.__file__, str(self.ends.state), *self.words, *words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _ports(count: int) -> int:
    """The first of several consecutive free ports, below the range of ephemeral ports."""
    import socket

    for first in range(21000, 31000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with PaperTestbed() as near, PaperTestbed() as far:
        made = World(near, far, tmp_path)
        monkeypatch.setenv("SLICEMGR_URL", near.url)
        monkeypatch.setenv("SLICEMGR_TOKEN", "admin")
        monkeypatch.setattr(slivers, "login", made.ends.login)
        yield made


def _until(done: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.01)


def _programs(world: World) -> list[str]:
    """iperf3 of this world that still runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.joinpath("comm").read_text() == "iperf3\n" and str(world.ends.state) in _environment(path):
                found.append(path.joinpath("cmdline").read_text())
        except OSError:
            continue
    return found


def _environment(process: Path) -> str:
    return process.joinpath("environ").read_bytes().decode(errors="replace")


def test_run_json_keeps_its_names(tmp_path: Path) -> None:
    """A run of an earlier version can be resumed, and `clean` reads the same names."""
    peer = tmp_path / "peer.json"
    peer.write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "x"}))
    places = {
        "node": "a",
        "node_exec": "",
        "peer": str(peer),
        "peer_exec": "",
        "peer_node": "b",
        "address": "192.0.2.1",
    }
    before = {**places, "kinds": ["kvm"], "images": {"kvm": "small"}}
    found = throughput.from_recorded(before, lambda: Client("http://127.0.0.1:1", "x"), ("key", b""), "bench-x-")
    assert found.workload.types == ["kvm"] and found.recorded.items() >= before.items()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_from_nothing_to_a_report(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seconds", "2", "--discard", "1", "--interval", "1", "--talkers", "3", "--talkers", "1")
    assert main([*world.words, *words, "--streams", "2", "--link", "unlimited", "--link", "1Gbit"]) == 0
    result = folder.read(world.run)
    once = ["1/in/vanilla", "1/in/lxc", "1/in/lxc*1", "1/in/lxc*3"]
    assert list(result.steps) == [f"{link}/{one}" for link in ("unlimited", "1Gbit") for one in once]
    assert result.info["outcome"] == "done" and world.left == [] and _programs(world) == []
    assert (world.near.most, world.far.most) == (3, 3)
    for one in result.steps.values():
        data = one["data"]
        assert len(data["pairs"]) == (data["count"] or 1)
        assert all(len(pair["samples"]) == 1 and pair["samples"][0] > 0 for pair in data["pairs"])
    assert {"report.html", "report.md", "data.csv"} <= {one.name for one in world.run.iterdir()}
    assert "On the unlimited link, to the node: vanilla" in capsys.readouterr().err
    was = [(world.ends.state / f"{end}.was").read_text().splitlines() for end in ("near", "far")]
    assert was[0] == was[1] and len(was[0]) == 2, "tried before, and held for the second half"
    assert all(re.match(r"5a11: tbf rate 1000000000bit burst \d+b limit \d+b$", line) for line in was[0])
    asked = [one.body for one in world.near.asked("POST /slices") + world.far.asked("POST /slices")]
    assert all(body["name"].startswith(result.info["prefix"]) and body["cpu"] == 2 for body in asked)


def test_without_slivers_at_the_peer_it_is_the_client(world: World) -> None:
    world.near.load = 500.0  # as after many talkers
    words = world.words[: world.words.index("--peer")]
    assert main([*words, *TABLE, "--link", "unlimited", "--direction", "out"]) == 0
    result = folder.read(world.run)
    assert list(result.steps) == ["unlimited/1/out/vanilla", "unlimited/1/out/lxc"]
    assert world.far.most == 0 and world.left == []
    assert any("the clients were the plain peer" in one for one in pages.content(result).outcome)


def test_what_is_kept_is_slices_and_no_rate(world: World) -> None:
    assert main([*world.words, *TABLE, "--link", "1Gbit", "--keep"]) == 0
    assert len(world.near.there) == len(world.far.there) == 1 and world.ends.held == []
    assert {*world.near.there} & {*world.far.there} == set(), "both may be nodes of one service"
    assert main([*world.words, *TABLE, "--link", "1Gbit", "--resume"]) == 0
    assert world.left == []


def test_a_dry_run_says_the_steps_and_does_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*world.words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "unlimited/1/in/vanilla  vanilla, unlimited, in" in said and "1Gbit/1/in/lxc*200" in said
    assert "12 steps into" in said
    assert world.near.asked("POST /slices") == [] and not world.run.exists()


@pytest.mark.long
def test_the_guard_looks_at_both_ends(world: World) -> None:
    world.far.each = 11 * GIB // 2
    words = ("--seconds", "2", "--discard", "1", "--interval", "1", "--link", "unlimited")
    assert main([*world.words, *words, "--talkers", "2", "--talkers", "4"]) == 0
    result = folder.read(world.run)
    assert result.info["outcome"] == "stopped" and "memory" in result.info["reason"]
    assert result.steps["unlimited/1/in/lxc*2"]["data"]["count"] == 2, "the last that went"
    assert result.steps["unlimited/1/in/lxc*4"]["data"] == {} and world.far.most == 2 and world.left == []


@pytest.mark.long
def test_talkers_that_do_not_all_come_up_are_told(world: World) -> None:
    world.far.room = 2
    words = ("--seconds", "2", "--discard", "1", "--interval", "1", "--link", "unlimited", "--plain-talkers")
    assert main([*world.words, *words, "--talkers", "1", "--talkers", "3", "--talkers", "4"]) == 0
    result = folder.read(world.run)
    assert result.info["outcome"] == "stopped"
    assert "of 3 lxc slivers" in result.info["reason"] and "came up on node1" in result.info["reason"]
    assert (
        "unlimited/1/in/vanilla*4" in result.steps and "unlimited/1/in/lxc*4" not in result.steps and world.left == []
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--discard", "420"), "--discard: discarding 420 s of 420 s leaves no samples"),
        (("--seconds", "5", "--discard", "4"), "--interval: no sample of 10 s begins between 4 s and 5 s"),
        (("--link", "fast"), "'fast' is not a rate"),
        (("--link", "0"), "'0' is too low; use at least 1Mbit"),
        (("--peer", "/nonexistent"), "--peer: /nonexistent cannot be read"),
        (("--peer-exec", "'"), "quote it as in a shell"),
        (("--peer", "", "--peer-node", "node1"), "--peer-node: node1 is the node itself"),
    ],
)
def test_bad_input_names_the_field(
    world: World, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*world.words, *words]) == Code.INVALID.exit_status
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1 and not world.run.exists()


def test_both_ends_in_one_place_are_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*world.words, "--node-exec", "env END=x", "--peer-exec", "env END=x"]
    assert main([*words, *TABLE]) == Code.INVALID.exit_status
    assert "--peer-exec: both ends are in the same place" in capsys.readouterr().err and not world.run.exists()


def test_a_link_that_is_none_or_down_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.ends.state / "same").touch()
    assert main([*world.words, *TABLE]) == Code.INVALID.exit_status
    assert "127.0.0.1 is reached without leaving the node" in capsys.readouterr().err
    (world.ends.state / "down").touch()
    assert main([*world.words, *TABLE]) == Code.UNAVAILABLE.exit_status
    said = capsys.readouterr().err
    assert "no way to 127.0.0.1" in said and "Network is unreachable" in said and "is the link up?" in said
    assert not world.run.exists() and world.near.most == 0


def test_an_error_is_one_line(world: World) -> None:
    (world.ends.state / "down").touch()
    process = world.start(*TABLE)
    _, said = process.communicate(timeout=60)
    assert process.returncode == Code.UNAVAILABLE.exit_status and len(said.splitlines()) == 1, said


def test_a_rate_that_somebody_else_has_set_stays(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.ends.state / "far.held").write_text("8001: htb default 1\n")
    assert main([*world.words, *TABLE]) == Code.FAILED.exit_status
    assert "is there another queueing discipline on link0?" in capsys.readouterr().err
    assert world.left == ["far"] and (world.ends.state / "far.held").read_text() == "8001: htb default 1\n"


def test_a_program_that_cannot_be_started_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.ends.state / "iperf3").write_text("#!/bin/sh\nexit 9\n")
    assert main([*world.words, *TABLE]) == Code.FAILED.exit_status
    said = capsys.readouterr().err
    assert "iperf3 to port" in said and "(vanilla 1)" in said and "is iperf3 installed at both ends?" in said
    assert world.left == []


def test_slices_of_another_experiment_at_the_peer_are_in_the_way(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.far.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
    assert main([*world.words, *TABLE]) == Code.CONFLICT.exit_status
    assert "slices of another experiment exist" in capsys.readouterr().err and world.near.most == 0


def test_too_few_ports_for_the_talkers(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.near.ports = 10
    assert main([*world.words, "--talkers", "10"]) == Code.QUOTA.exit_status
    assert "--talkers: 10 slivers take 20 ports, and node1 has 10" in capsys.readouterr().err


LIMITED = """
import resource, sys
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from slicemgr.bench.frame import iperf
from slicemgr.errors import Refused
try:
    iperf.make_room(200)
except Refused as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("hard", "says"), [(4096, "(1800, 4096)"), (1000, "--talkers: 200 pairs take 1800 open files")]
)
def test_open_files_are_raised_as_far_as_allowed(hard: int, says: str) -> None:
    argv = [sys.executable, "-c", LIMITED, str(hard)]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.startswith(says), done.stdout + done.stderr


# --- interrupted, killed, resumed -------------------------------------------------------------------------------------


LONG = ("--seconds", "600", "--discard", "0", "--no-talkers", "--link", "1Gbit")


def test_interrupted_while_it_measures(world: World) -> None:
    process = world.start(*LONG)
    _until(lambda: len(_programs(world)) >= 2, process)
    _until(lambda: world.ends.held == ["far", "near"], process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    assert world.left == [] and _programs(world) == []
    assert folder.read(world.run).info["outcome"] == "interrupted"


@pytest.mark.long
def test_killed_while_slivers_measure_and_cleaned(world: World) -> None:
    process = world.start("--seconds", "4", "--discard", "0", "--interval", "2", "--no-talkers", "--link", "1Gbit")
    _until(lambda: world.far.there and len(_programs(world)) >= 2, process)
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 60
    while _programs(world) and time.monotonic() < end:
        time.sleep(0.05)
    assert _programs(world) == [], "programs end with who started them"
    assert len(world.near.there) == len(world.far.there) == 1 and world.ends.held == ["far", "near"]
    world.far.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
    assert main(["bench", "clean", str(world.run)]) == 0
    assert world.left == ["bench-other-0001"]


@pytest.mark.long
def test_killed_and_resumed(world: World) -> None:
    words = (
        "--seconds",
        "2",
        "--discard",
        "0",
        "--interval",
        "1",
        "--no-talkers",
        "--link",
        "1Gbit",
        "--link",
        "unlimited",
    )
    first = world.words
    process = subprocess.Popen(
        [sys.executable, paper_ends.__file__, str(world.ends.state), *first, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    end = time.monotonic() + 60
    while not (world.run / "steps.jsonl").exists() or not world.near.there:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait(60)
    before = (world.run / "steps.jsonl").read_text()
    assert main([*first, *words, "--resume"]) == 0
    result = folder.read(world.run)
    assert (world.run / "steps.jsonl").read_text().startswith(before) and len(result.steps) == 4
    assert world.left == [] and result.info["notes"][0].startswith("resumed at lxc, 1Gbit, in")


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_lives_as_long_as_it_is_held(tmp_path: Path) -> None:
    mark = tmp_path / "a file with 'quotes' and spaces"
    with endpoints.started(["env"], ["sh", "-c", f'touch "{mark}"; exec sleep 60'], 60) as talk:
        endpoints.await_ready(talk)
        assert not mark.exists(), "it waits to be let go"
        talk.say("go")
        end = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        begun = time.monotonic()
        talk.hang_up()
        _, status = endpoints.rest(talk)
    assert status not in (0, None) and time.monotonic() - begun < 30


def test_a_program_that_ends_tells_what_it_said() -> None:
    with endpoints.started([], ["sh", "-c", "cat; echo said; exit 3"], 60) as talk:
        endpoints.await_ready(talk)
        talk.say("go")
        talk.say("not for the program")
        assert endpoints.rest(talk) == ("said", 3)


def _report(*rates: tuple[float, float, float]) -> str:
    """rates: start, seconds, bits per second."""
    intervals = [{"sum": {"start": one[0], "seconds": one[1], "bits_per_second": one[2]}} for one in rates]
    cpu = {"host_total": 50.5, "remote_total": 40}
    end = {"sum_sent": {"retransmits": 3}, "sum_received": {"bits_per_second": 7.5}, "cpu_utilization_percent": cpu}
    end["sender_tcp_congestion"] = "cubic"
    return json.dumps({"intervals": intervals, "end": end})


def test_samples_after_what_is_discarded() -> None:
    figures = iperf.figures(_report((0, 10, 1.0), (10.0001, 10, 2.0), (19.9999, 10, 3.0), (30, 0.01, 99.0)), 20, 10)
    more = {"retransmits": 3, "congestion": "cubic", "cpu": {"host": 50.5, "remote": 40}}
    assert figures == {"samples": [3], "arrived": 8, **more}
    assert (iperf.figures(_report((0, 2, 5.0)), 0, 10) or {})["samples"] == [5], "a short one, where it is the only one"
    beyond = _report((0, 10, 1.0), (10, 10, 2.0), (20.0001, 10, 9.0))
    assert (iperf.figures(beyond, 0, 10, 20) or {})["samples"] == [1, 2], "when others have ended, it has more"


@pytest.mark.parametrize("said", ["", "[]", "iperf3: error", '{"intervals": [], "end": {"sum_received": {}}}'])
def test_a_report_without_a_rate(said: str) -> None:
    assert iperf.figures(said, 0, 10) is None and iperf.complaint(said) == ""


def test_its_own_complaint_is_told() -> None:
    assert (
        iperf.complaint('{"start": {}, "error": "error - unable to connect to server"}')
        == "unable to connect to server"
    )
    pair = iperf.Pair("lxc 7", ("env",), ("false",), _ports(1))
    with pytest.raises(Failed, match=rf"iperf3 to port {pair.port} \(lxc 7\)"):
        iperf.measure([pair], iperf.How("127.0.0.1", 1), lambda *_: None)


def test_a_peer_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "peer.json").write_text('{"url": "http://192.0.2.1:8480", "token": "t"}')
    with throughput.peer_client(str(tmp_path / "peer.json"))() as client:
        assert client.url == "http://192.0.2.1:8480"


@pytest.mark.parametrize("reverse", [False, True])
def test_the_sender_uses_the_congestion_control_that_was_asked_for(reverse: bool) -> None:
    """Reno is in every kernel, and no kernel's own choice."""
    pair = iperf.Pair("one", (), ("sh", "-c", 'exec "$@"', "-"), _ports(1))
    found = [
        iperf.measure([pair], iperf.How("127.0.0.1", 1, interval=1, reverse=reverse, congestion=one), lambda *_: None)
        for one in ("reno", "")
    ]
    assert found[0][0]["congestion"] == "reno" != found[1][0]["congestion"]

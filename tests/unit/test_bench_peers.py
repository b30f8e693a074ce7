"""bench peers by its command line, against a testbed on paper and peers whose programs are fakes, run for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paper_peers
import pytest
from canned_service import slice as a_slice
from paper_peers import PeerTestbed, World

from slicemgr.bench.experiments import peers
from slicemgr.bench.frame import folder
from slicemgr.bench.peers.kinds import PEERS
from slicemgr.cli import INTERRUPTED, main
from slicemgr.cli.bench import peers as bench_peers
from slicemgr.client import Client
from slicemgr.errors import Code

SMALL = ("bench", "peers", "--count", "3", "--ports", "5", "--parallel", "2", "--seconds", "1")
PREFIX = "bench-0123abcd-"


@pytest.fixture
def testbed() -> Iterator[PeerTestbed]:
    with PeerTestbed() as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path / "world")
    found.patch(monkeypatch.setattr)
    return found


@pytest.fixture
def slicectl(testbed: PeerTestbed, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _environment(testbed, world).items():
        monkeypatch.setenv(name, value)


def _environment(testbed: PeerTestbed, world: World) -> dict[str, str]:
    config = str(world.path / "slicemgr.toml")
    return {"SLICEMGR_URL": testbed.url, "SLICEMGR_TOKEN": "admin", "SLICEMGR_CONFIG": config}


def _start(testbed: PeerTestbed, world: World, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(("tests", *(one for one in sys.path if one)))
    environment = {**os.environ, **_environment(testbed, world), "PYTHONPATH": path}
    argv = [sys.executable, paper_peers.__file__, str(world.path), *SMALL, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _until(check: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def _parameters(world: World, **more: object) -> peers.PeersParameters:
    return peers.PeersParameters(lambda: Client("http://127.0.0.1:1", "x"), "node1", "key", PREFIX, world.pool, **more)  # type: ignore[arg-type]


# --- steps, detection -------------------------------------------------------------------------------------------------


def test_the_command_line_knows_the_peers() -> None:
    assert tuple(PEERS) == bench_peers._NAMES


def test_what_is_not_installed_has_a_step_of_its_own(world: World) -> None:
    world.make((*paper_peers.DOCKER, "podman", "crun", "lxc"))
    missing = {key: peer.missing() for key, peer in PEERS.items()}
    there = {key for key, lacks in missing.items() if not lacks}
    assert there == {"docker", "podman-crun"} and missing["podman-runc"] == ["runc"]
    assert missing["lxd"] == ["lxd", "dnsmasq"]
    ids = [one.id for one in peers.steps(_parameters(world, repeat=2), missing)]
    assert ids[:5] == [f"absent/{one}" for one in ("podman-runc", "lxd", "incus", "lxc", "nspawn")]
    for turn, part in (("1", ids[5:8]), ("2", ids[8:11])):
        assert sorted(part) == [f"{turn}/docker", f"{turn}/podman-crun", f"{turn}/slicemgr"]
    assert ids == [one.id for one in peers.steps(_parameters(world, repeat=2), missing)]


def test_the_order_changes_with_the_repetition_and_the_seed(world: World) -> None:
    orders = {
        tuple(one.id.partition("/")[2] for one in peers.steps(_parameters(world, seed=seed, repeat=3), {}))
        for seed in range(5)
    }
    assert len(orders) == 5


@pytest.mark.usefixtures("slicectl")
def test_a_dry_run_does_nothing(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.make(paper_peers.DOCKER)
    assert main([*SMALL, "--output", str(tmp_path / "run"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1/docker  3 by Docker" in said and "absent/lxd  LXD: not installed" in said
    assert world.calls == [] and world.left == [] and not (tmp_path / "run").exists()


def test_the_work_of_the_node_leaves_out_what_waits() -> None:
    stat = "cpu  100 20 30 1000000 5000 1 2 7 300 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert peers.busy(stat) == 153 / os.sysconf("SC_CLK_TCK")


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("slicectl")
def test_a_run_from_nothing_to_a_report(testbed: PeerTestbed, world: World, tmp_path: Path) -> None:
    world.make((*paper_peers.DOCKER, *paper_peers.HAND))
    run = tmp_path / "run"
    assert main([*SMALL, "--repeat", "2", "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "done", result.info["reason"]
    assert testbed.there == {} and testbed.most == 3 and world.left == []
    for turn in "12":
        for key in ("slicemgr", "docker", "lxc"):
            data = result.steps[f"{turn}/{key}"]["data"]
            assert data["n"] == data["reached"] == len(data["creates"]) == 3
            assert all(0 < one["made"] <= one["banner"] for one in data["creates"])
            assert data["rates"] == {"plain": 10e9, "in": 10e9, "out": 8e9}
            assert data["work"].keys() == data["rates"].keys() and min(data["work"].values()) >= 0
    assert result.steps["1/docker"]["data"]["version"] == "dockerd 1.0 (fake)"
    assert result.steps["absent/incus"]["data"]["missing"] == ["incusd", "incus", "dnsmasq"]
    assert {one.body["ports"] for one in testbed.asked("POST /slices")} == {5}
    page = (run / "report.html").read_text()
    assert "Docker, 3 containers, same run: " in page and "apt-get install podman crun" in page


@pytest.mark.long
@pytest.mark.usefixtures("slicectl")
def test_what_breaks_in_one_ends_that_one(testbed: PeerTestbed, world: World, tmp_path: Path) -> None:
    world.make((*paper_peers.DOCKER, "podman", "crun"))
    (world.path / "broken-dockerd").write_text("failed to mount overlay: no such device\n")
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    result = folder.read(run)
    stopped = result.steps["1/docker"]["stopped"]
    assert result.info["outcome"] == "stopped" and "failed to mount overlay" in stopped
    assert result.steps["1/slicemgr"]["data"]["n"] == result.steps["1/podman-crun"]["data"]["n"] == 3
    assert world.left == [] and testbed.there == {}
    assert "failed to mount overlay" in (run / "report.md").read_text()


@pytest.mark.long
@pytest.mark.usefixtures("slicectl")
def test_a_container_that_does_not_answer_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make(paper_peers.DOCKER)
    (world.path / "mute").touch()
    monkeypatch.setattr(peers, "_BANNER", 0.3)
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    result = folder.read(run)
    assert "Docker: of 3 0 came up: " in result.steps["1/docker"]["stopped"]
    assert "no ssh banner within 0.3 s" in result.steps["1/docker"]["stopped"] and world.left == []


@pytest.mark.long
@pytest.mark.usefixtures("slicectl")
def test_where_fewer_come_up_these_are_measured(world: World, tmp_path: Path) -> None:
    world.make(paper_peers.DOCKER)
    (world.path / "room").write_text("2")
    run = tmp_path / "run"
    assert main(["bench", "peers", "--count", "4", "--parallel", "1", "--with", "docker", "--output", str(run)]) == 0
    step = folder.read(run).steps["1/docker"]
    assert step["stopped"].startswith("Docker: of 4 2 came up: docker run: exit status 125: fork: Resource temporarily")
    data = step["data"]
    assert data["n"] == data["reached"] == 2 and 0 < max(one["banner"] for one in data["creates"]) <= data["seconds"]
    assert data["delete_seconds"] > 0 and data["rates"]["in"] == 10e9 and world.left == []
    assert "Docker, 2 containers, same run" in (run / "report.md").read_text()


@pytest.mark.usefixtures("slicectl")
def test_the_node_is_guarded(testbed: PeerTestbed, world: World, tmp_path: Path) -> None:
    """The guard uses the known costs of each peer's containers."""
    world.make(paper_peers.DOCKER)
    run = tmp_path / "run"
    assert main(["bench", "peers", "--count", "400", "--seconds", "0", "--with", "docker", "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.steps["1/docker"]["stopped"].startswith("memory: ")
    assert result.steps["1/slicemgr"]["data"]["n"] == 400 and not any("docker run" in one for one in world.calls)


@pytest.mark.long
@pytest.mark.usefixtures("slicectl")
def test_what_is_installed_later_is_measured_by_the_resumption(world: World, tmp_path: Path) -> None:
    world.make()
    run = tmp_path / "run"
    words = [*SMALL, "--with", "docker", "--output", str(run)]
    assert main(words) == 0
    assert list(folder.read(run).steps) == ["absent/docker", "1/slicemgr"]
    world.install(*paper_peers.DOCKER)
    assert main([*words, "--resume"]) == 0
    result = folder.read(run)
    assert result.steps["1/docker"]["data"]["n"] == 3 and "Not measured, or" not in (run / "report.md").read_text()


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ("user", Code.DENIED, "peers are started as root"),
        ("node", Code.INVALID, "--node: node1 is another machine than this one"),
        ("pool", Code.INVALID, "does not exist here"),
        ("iperf3", Code.UNAVAILABLE, "not installed here: iperf3"),
        ("ports", Code.QUOTA, "--count: 3 slivers take 15 ports, and node1 has 9"),
        ("other", Code.CONFLICT, "slices of another experiment exist: bench-other-0001"),
        ("keep", Code.INVALID, "--keep: the containers of a peer are removed at the end of its step"),
        ("memory", Code.INVALID, "--memory"),
    ],
)
@pytest.mark.usefixtures("slicectl")
def test_refused_before_anything_is_made(
    wrong: str,
    code: Code,
    says: str,
    testbed: PeerTestbed,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.make(paper_peers.DOCKER)
    words = [*SMALL, "--output", str(tmp_path / "run")]
    match wrong:
        case "user":
            monkeypatch.setattr(os, "geteuid", lambda: 1000)
        case "node":
            testbed.boot_id = "another"
        case "pool":
            (world.pool / "bases").rename(tmp_path / "bases")
        case "iperf3":
            (world.bin / "iperf3").unlink()
        case "ports":
            testbed.ports = 9
        case "other":
            testbed.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
        case "keep":
            words.append("--keep")
        case "memory":
            words += ["--memory", "much"]
    assert main(words) == code.exit_status
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1
    assert world.calls == [] and testbed.most == 0 and not (tmp_path / "run").exists()


# --- interrupted, killed, resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_a_peer_creates(
    testbed: PeerTestbed, world: World, tmp_path: Path, number: signal.Signals
) -> None:
    world.make(paper_peers.DOCKER)
    run = tmp_path / "run"
    _slow(world)
    process = _start(testbed, world, "--output", str(run))
    _until(lambda: any(world.there.glob("bench-*")), process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    assert "exit status" not in said and "steps are stored" in said  # what was killed is no news
    result = folder.read(run)
    assert result.info["outcome"] == "interrupted" and "1/docker" not in result.steps
    assert world.left == [] and testbed.there == {}


@pytest.mark.long
def test_killed_while_a_peer_creates_cleaned_and_resumed(testbed: PeerTestbed, world: World, tmp_path: Path) -> None:
    world.make(paper_peers.DOCKER)
    run = tmp_path / "run"
    _slow(world)
    process = _start(testbed, world, "--output", str(run))
    _until(lambda: any(world.there.glob("bench-*")), process)
    process.kill()
    process.communicate(timeout=60)
    prefix = folder.read(run).info["prefix"]
    _until(lambda: world.left == [prefix.rstrip("-")])  # what ran has ended by itself, its files are there
    environment = {**os.environ, **_environment(testbed, world), "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, paper_peers.__file__, str(world.path), "bench", "clean", str(run)]
    cleaned = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60)
    assert cleaned.returncode == 0 and world.left == [], cleaned.stderr
    (world.path / "slow").unlink()
    resumed = _start(testbed, world, "--output", str(run), "--resume")
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0 and folder.read(run).steps["1/docker"]["data"]["n"] == 3, said
    assert world.left == [] and testbed.there == {}


def _slow(world: World) -> None:
    (world.path / "slow").write_text("0.4")


@pytest.mark.usefixtures("slicectl")
def test_elsewhere_than_on_the_node_nothing_is_cleaned(
    testbed: PeerTestbed, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.make()
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    left = world.pool / folder.read(run).info["prefix"].rstrip("-")
    left.mkdir()
    testbed.boot_id = "another"
    assert main(["bench", "clean", str(run)]) == Code.INVALID.exit_status
    assert "another machine" in capsys.readouterr().err and left.exists()


def test_memory_that_is_free() -> None:
    assert peers.free_memory("MemTotal: 9 kB\nMemAvailable:  5 kB\nSwapFree: 2 kB\nHugePages_Total: 0\n") == 7 * 1024

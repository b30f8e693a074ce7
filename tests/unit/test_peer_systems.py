"""The calls of bench peers to the programs of each peer, which are executable fakes, and its cleanup."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import paper_peers
import pytest
from paper_peers import World

from slicemgr.bench.peers import namespaces
from slicemgr.bench.peers.kinds import PEERS
from slicemgr.bench.peers.namespaces import Sandbox
from slicemgr.bench.peers.systems import Work, pattern
from slicemgr.errors import Failed

PREFIX = "bench-0123abcd-"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path / "world")
    found.patch(monkeypatch.setattr)
    return found


def _until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("key", PEERS)
def test_what_each_peer_is_told(key: str, world: World, golden: Callable[[str, str], None]) -> None:
    """The whole life of one container with five ports, by the words of each program."""
    world.make(paper_peers.ALL)
    with Sandbox(world.pool, PREFIX, 60) as sandbox:
        system = PEERS[key].make(sandbox, Work(256 << 20, 5))
        pattern(sandbox, world.pool / "bases" / paper_peers.SHA)
        system.begin()
        one = Work(256 << 20, 5).one(PREFIX, 1)
        system.create(one)
        _until(lambda: key != "nspawn" or any(line.startswith("systemd-nspawn ") for line in world.calls))
        within = " ".join(system.within(one))
        system.delete(one)
        assert not (sandbox.directory / f"{one.name}.pid").exists()
    calls = [line for line in world.calls if not line.startswith(("ip link add bench-", "ip link delete bench-"))]
    waits = sorted({line for line in calls if " version" in line or " waitready" in line})  # as often as it takes
    text = "\n".join([*(line for line in calls if line not in waits), *(f"until: {line}" for line in waits)])
    names = {str(sandbox.directory): "DIR", str(world.pool): "POOL", paper_peers.SHA: "IMAGE"}
    names |= {str(one.first): "FIRST", str(one.first + 1): "SECOND", str(one.last): "LAST"}
    for what, name in names.items():
        text = text.replace(what, name)
    shape = " ".join("PID" if word.isdigit() else word for word in within.split())
    golden(f"peers/{key}.txt", f"{text}\nwithin: {shape}\n")
    namespaces.remove(world.pool, PREFIX)
    assert world.left == []


def test_containers_differ_in_name_ports_and_address() -> None:
    work = Work(1, 20)
    ones = [work.one(PREFIX, index) for index in range(1000)]
    assert ones[0].first == 10_000 and ones[0].last == 10_019 and ones[1].first == 10_020
    assert len({one.address for one in ones}) == len({one.name for one in ones}) == 1000
    assert max(one.last for one in ones) < 32768 and all(int(one.address.split(".")[3]) < 255 for one in ones)


def test_a_root_gets_a_host_key_and_a_first_process(world: World, tmp_path: Path) -> None:
    """Not by way of the links that an image has: they may lead out of it."""
    world.make()
    outside = tmp_path / "outside"
    outside.mkdir()
    base = world.pool / "bases" / "evil"
    base.mkdir()
    (base / "etc").symlink_to(outside)
    with Sandbox(world.pool, PREFIX, 60) as sandbox:
        made = pattern(sandbox, base)
        assert (made / ".bench-peer").stat().st_mode & 0o777 == 0o755
        key = made / "etc" / "ssh" / "ssh_host_ed25519_key"
        assert key.stat().st_mode & 0o777 == 0o600 and key.read_text().startswith("-----BEGIN OPENSSH")
    assert list(outside.iterdir()) == []
    (base / "etc" / "control").write_text("this one follows the link")
    assert [one.name for one in outside.iterdir()] == ["control"]


def test_systemd_nspawn_gets_a_control_group_with_a_limit(world: World) -> None:
    """In the hierarchy of the memory controller only, as on v1."""
    world.make(("systemd-nspawn",))
    group = world.cgroups / "memory" / PREFIX.rstrip("-") / f"{PREFIX}0000"
    group.mkdir(parents=True)
    for file in (group / "memory.limit_in_bytes", group / "cgroup.procs", world.cgroups / "memory" / "cgroup.procs"):
        file.touch()
    with Sandbox(world.pool, PREFIX, 60) as sandbox:
        work = Work(256 << 20, 5)
        system, one = PEERS["nspawn"].make(sandbox, work), work.one(PREFIX, 0)
        (sandbox.directory / "pattern").mkdir()
        system.create(one)
        _until(lambda: any(line.startswith("systemd-nspawn ") for line in world.calls))
        system.delete(one)
    assert (group / "memory.limit_in_bytes").read_text() == f"{256 << 20}\n"
    assert (group / "cgroup.procs").read_text() == "0\n" and not (world.cgroups / PREFIX.rstrip("-")).exists()


def test_what_the_groups_of_a_run_hold_and_that_they_go(world: World) -> None:
    world.make()
    memory = world.cgroups / "memory"
    mine, other = memory / "lxc.payload.bench-0123abcd-0001", memory / "lxc.payload.bench-99999999-0001"
    assert namespaces.charged(PREFIX) is None
    for group in (mine, other):
        group.mkdir(parents=True)
        (group / "memory.usage_in_bytes").write_text("7000\n")
        (group / "memory.stat").write_text("cache 5\ninactive_file 100\ntotal_inactive_file 2000\n")
    assert namespaces.charged(PREFIX) == 5000
    for file in mine.iterdir():
        file.unlink()  # the kernel's own go with the directory
    namespaces.remove(world.pool, PREFIX)
    assert [one.name for one in memory.iterdir()] == [other.name]


@pytest.mark.parametrize("prefix", ["", "bench-", "bench--", "slivers-", "../bench-0123abcd-"])
def test_nothing_is_removed_that_is_not_a_runs(world: World, prefix: str) -> None:
    world.make()
    with pytest.raises(ValueError, match="no run's prefix"):
        namespaces.remove(world.pool, prefix)
    assert (world.pool / "bases" / paper_peers.SHA / "etc" / "hostname").exists()


def test_a_place_whose_keeper_does_not_come_up(world: World) -> None:
    world.make()
    (world.path / "broken-unshare").write_text("unshare failed: Operation not permitted\n")
    with (
        pytest.raises(Failed, match=r"cannot make namespaces for the peers: .*not permitted"),
        Sandbox(world.pool, PREFIX, 60),
    ):
        pass
    namespaces.remove(world.pool, PREFIX)
    assert world.left == []

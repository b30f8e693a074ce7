"""Snapshots of both types in a real node: their content, restores, and the shared data and charges of clones."""

from __future__ import annotations

import itertools
import json
import subprocess
from typing import Any

import pytest
from test_faults import ask, ask_while_nobody_listens, strike_at_each
from testbed import Node, eventually

MIB = 1 << 20
POOL = "/var/lib/slicemgr/pool"
RESTORE_STEPS = ("kill", "root", "identity", "publish", "domain", "verify", "ssh")

both_types = pytest.mark.usefixtures("each_type")


def snapshots(node: Node, name: str = "exp") -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(node.ok("snapshot", "list", name, "-f", "json"))}


def kept(node: Node, target: str = "exp") -> str:
    return node.inside(target, "cat /root/file; ls /root/later 2>/dev/null || true")


def charged(node: Node) -> dict[str, int]:
    """Bytes of each sliver's quota group, by slice, once all that was deleted is freed."""
    node.box.run(["btrfs", "filesystem", "sync", POOL], check=True)  # wakes the cleaner
    node.box.run(["btrfs", "subvolume", "sync", POOL], timeout=300)
    shown = node.box.run(["btrfs", "qgroup", "show", "--raw", POOL], check=True).stdout
    groups = {words[0]: int(words[2]) for words in map(str.split, shown.splitlines()) if words[0].startswith("1/")}
    rows = node.rows("select l.name, s.serial from slivers s join slices l on l.id = s.slice")
    return {name: groups[f"1/{serial}"] for name, serial in rows}


@both_types
def test_made_restored_and_deleted(node: Node) -> None:
    """The sliver runs while a snapshot is made; a restore brings back exactly the files of the snapshot."""
    node.create("exp")
    before = node.inside("exp", "echo old > /root/file; sync; cat /proc/sys/kernel/random/boot_id; hostname")
    node.ok("snapshot", "create", "exp", "one")
    made = snapshots(node)["one"]
    assert made["state"] == "ready" and 0 < made["size"] < 1 << 30
    assert node.inside("exp", "cat /proc/sys/kernel/random/boot_id; hostname") == before, "it was not restarted"
    node.inside("exp", "echo new > /root/file; touch /root/later; sync")
    key = node.show("exp")["slivers"][0]["ssh"]["host_key"]
    node.ok("snapshot", "restore", "exp", "one")
    assert kept(node) == "old\n"
    assert node.show("exp")["slivers"][0]["ssh"]["host_key"] == key
    node.agrees()
    node.ok("snapshot", "delete", "exp", "one")
    assert snapshots(node) == {}
    assert kept(node) == "old\n"
    node.agrees()
    actions = [one["action"] for one in json.loads(node.ok("event", "list", "--slice", "exp", "-f", "json"))]
    assert {"snapshot create", "snapshot restore", "snapshot delete"} <= set(actions)


@both_types
def test_a_clone_is_a_slice_of_its_own(node: Node) -> None:
    """It has other name, address, ports, IDs and keys, and remains when snapshot and original are deleted."""
    original = node.create("exp")["slivers"][0]
    mine = node.inside("exp", "echo old > /root/file; sync; cat /etc/machine-id 2>/dev/null || true")
    node.ok("snapshot", "create", "exp", "one")
    node.inside("exp", "echo new > /root/file; sync")
    node.ok("snapshot", "clone", "exp", "one", "twin", "--ssh-key", f"{node.key}.pub")
    clone = node.show("twin")["slivers"][0]
    for differs in ("id", "address", "ports"):
        assert clone[differs] != original[differs]
    assert clone["ssh"]["host_key"] != original["ssh"]["host_key"]
    assert node.inside("twin", "hostname; cat /root/file") == "twin-0\nold\n"
    theirs = node.inside("twin", "cat /etc/machine-id 2>/dev/null || true")
    assert theirs != mine or not mine.strip(), "two machines of one id"
    uids = node.rows("select uid_first from slivers order by uid_first")
    assert len(set(uids)) == 2
    node.inside("twin", "echo mine > /root/file; sync")
    assert node.inside("exp", "cat /root/file") == "new\n"
    node.agrees()
    node.ok("delete", "exp")
    node.agrees()
    node.ok("restart", "twin")
    assert node.inside("twin", "cat /root/file") == "mine\n"
    node.ok("snapshot", "create", "twin", "own")
    node.inside("twin", "rm /root/file; sync")
    node.ok("snapshot", "restore", "twin", "own")
    assert node.inside("twin", "hostname; cat /root/file") == "twin-0\nmine\n"
    node.agrees()


def write(node: Node, target: str, file: str, mib: int) -> subprocess.CompletedProcess[str]:
    return node.ssh(target, f"dd if=/dev/urandom of=/root/{file} bs=1M count={mib} conv=fsync 2>&1", timeout=120)


def test_what_a_snapshot_keeps_counts_against_the_limit(node: Node) -> None:
    """Deleted files that a snapshot has still fill the disk limit; without the snapshot they do not."""
    if not node.simple_quotas:
        pytest.fail("the box has no simple quotas")
    node.create("exp", "--disk", "64M")
    assert write(node, "exp", "big", 40).returncode == 0
    node.ok("snapshot", "create", "exp", "one")
    size = snapshots(node)["one"]["size"]
    assert 40 * MIB < size < 44 * MIB
    node.inside("exp", "rm /root/big; sync")
    assert charged(node)["exp"] > 40 * MIB
    told = write(node, "exp", "more", 40)
    assert told.returncode != 0 and "quota" in told.stdout.lower()
    node.ok("snapshot", "delete", "exp", "one")
    node.inside("exp", "rm /root/more; sync")
    eventually(lambda: charged(node)["exp"] < 8 * MIB, "what it kept is free", 120)
    assert write(node, "exp", "more", 40).returncode == 0


def test_a_clone_pays_for_what_it_began_with(node: Node) -> None:
    """Its limit covers that as for a copy, so that no chain of clones exceeds the limits."""
    node.create("exp", "--disk", "64M")
    assert write(node, "exp", "big", 40).returncode == 0
    node.ok("snapshot", "create", "exp", "one")
    before = charged(node)["exp"]
    small = node.slicectl("snapshot", "clone", "exp", "one", "twin", "--disk", "48M")
    assert small.returncode == 2 and "at least" in small.stderr
    node.ok("snapshot", "clone", "exp", "one", "twin", "--ssh-key", f"{node.key}.pub")
    assert charged(node)["exp"] < before + MIB and charged(node)["twin"] < 4 * MIB, "nothing was copied"
    assert write(node, "twin", "more", 40).returncode != 0, "40 of the 64 MiB are used up"
    node.inside("twin", "rm /root/more; sync")
    assert write(node, "twin", "more", 12).returncode == 0
    node.ok("delete", "exp")
    node.agrees()
    assert node.inside("twin", "stat -c %s /root/big").strip() == str(40 * MIB)
    eventually(lambda: node.show("twin")["slivers"][0]["usage"]["disk"] > 50 * MIB, "its use has all of it", 30)
    node.ok("delete", "twin")
    node.agrees()
    left = node.box.run(["btrfs", "qgroup", "show", "--raw", POOL], check=True).stdout

    def alone() -> bool:
        node.box.run(["btrfs", "filesystem", "sync", POOL], check=True)
        shown = node.box.run(["btrfs", "qgroup", "show", "--raw", POOL], check=True).stdout
        listed = node.box.run(["btrfs", "subvolume", "list", POOL], check=True).stdout
        groups = {line.split()[0] for line in shown.splitlines() if line.startswith("0/")}
        return groups - {"0/5"} <= {f"0/{line.split()[1]}" for line in listed.splitlines()}

    eventually(alone, f"no quota group outlives what it counts: {left}", 30)


@pytest.mark.long
@both_types
def test_killed_around_each_step_of_a_restore(node: Node) -> None:
    """Old or new, never neither; with the last agent, new."""
    node.create("exp")
    node.inside("exp", "echo old > /root/file; sync")
    node.ok("snapshot", "create", "exp", "one")
    node.inside("exp", "echo new > /root/file; touch /root/later; sync")
    ask_while_nobody_listens(node, "snapshot", "restore", "exp", "one")

    def over() -> bool:
        return not node.rows("select 1 from operations where kind = 'restore' and state in ('queued', 'running')")

    deaths = strike_at_each(node, RESTORE_STEPS, over, libvirt=False)
    assert deaths == list(itertools.product(RESTORE_STEPS, ("before", "after")))
    node.start_agent()
    eventually(over, "the restore has ended", 240)
    assert kept(node) == "old\n"
    node.agrees()


@pytest.mark.long
@both_types
def test_killed_around_making_and_discarding(node: Node) -> None:
    node.create("exp")
    node.inside("exp", "echo old > /root/file; sync")
    for words, step in ((("create", "exp", "one"), "snapshot"), (("delete", "exp", "one"), "discard")):
        ask_while_nobody_listens(node, "snapshot", *words)

        def over() -> bool:
            return not node.rows("select 1 from operations where state in ('queued', 'running')")

        assert strike_at_each(node, (step,), over, libvirt=False) == [(step, "before"), (step, "after")]
        node.start_agent()
        eventually(over, f"{step} has ended", 120)
        assert node.inside("exp", "cat /root/file") == "old\n", "it runs, not paused"
        assert [one["state"] for one in snapshots(node).values()] == (["ready"] if step == "snapshot" else [])
        node.agrees()


def test_killed_between_the_exchange_and_the_end_of_the_old_root(node: Node) -> None:
    """At that moment, the new root is in place, and the old one is next to it."""
    sliver = node.create("exp")["slivers"][0]["id"]
    node.inside("exp", "echo old > /root/file; sync")
    node.ok("snapshot", "create", "exp", "one")
    node.ok("snapshot", "restore", "exp", "one")
    node.kill("agent")
    lies = f"{POOL}/slivers/{sliver}"
    node.box.run(["btrfs", "subvolume", "snapshot", f"{lies}/root", f"{lies}/root.new"], check=True)
    node.start_agent()
    eventually(lambda: node.box.run(["test", "-e", f"{lies}/root.new"]).returncode != 0, "it is gone", 30)
    assert kept(node) == "old\n"
    node.agrees()


def test_a_stopped_slice_stays_stopped(node: Node) -> None:
    node.create("exp")
    node.inside("exp", "echo old > /root/file; sync")
    node.ok("stop", "exp")
    node.ok("snapshot", "create", "exp", "one")
    node.ok("start", "exp")
    node.inside("exp", "echo new > /root/file; sync")
    node.ok("stop", "exp")
    node.ok("snapshot", "restore", "exp", "one")
    assert node.show("exp")["state"] == "stopped"
    node.agrees()
    node.ok("start", "exp")
    assert kept(node) == "old\n"


def test_every_sliver_of_a_slice_and_what_is_refused(node: Node) -> None:
    node.create("exp", "--count", "3")
    for index in range(3):
        node.inside(f"exp/{index}", f"echo {index} > /root/file; sync")
    node.ok("snapshot", "create", "exp", "one")
    taken = node.slicectl("snapshot", "create", "exp", "one")
    assert taken.returncode == 4 and "already" in taken.stderr
    for name, status in (("UPPER", 2), ("a" * 41, 2), ("../x", 2), ("ok?", 2)):
        assert node.slicectl("snapshot", "create", "exp", name).returncode == status, name
    assert node.slicectl("snapshot", "restore", "exp", "two").returncode == 3
    node.ok("snapshot", "clone", "exp", "one", "twin", "--ssh-key", f"{node.key}.pub")
    assert [node.inside(f"twin/{index}", "cat /root/file") for index in range(3)] == ["0\n", "1\n", "2\n"]
    node.ok("delete", "exp")
    assert node.slicectl("snapshot", "list", "exp").returncode == 3
    node.agrees()


def test_a_slice_deleted_while_its_snapshot_is_made_or_cloned(node: Node) -> None:
    node.create("exp")
    node.ok("snapshot", "create", "exp", "one")
    ask_while_nobody_listens(node, "snapshot", "clone", "exp", "one", "twin", "--ssh-key", f"{node.key}.pub")
    for words in (("delete", "exp"), ("snapshot", "delete", "exp", "one")):
        told = node.slicectl(*words)
        assert told.returncode == 4 and "twin" in told.stderr, told
    node.start_agent()
    node.ok("wait", "twin", "--timeout", "60s")
    ask(node, "snapshot", "create", "exp", "two")
    node.ok("delete", "exp")
    assert node.inside("twin", "id -u") == "0\n"
    node.agrees()


def test_the_wrong_root_is_noticed(node: Node) -> None:
    """The control: a sliver with the mark of an older root is repaired, so the mark is what decides."""
    sliver = node.create("exp")["slivers"][0]["id"]
    node.inside("exp", "echo old > /root/file; sync")
    node.ok("snapshot", "create", "exp", "one")
    node.ok("snapshot", "restore", "exp", "one")
    node.inside("exp", "echo new > /root/file; sync")
    root = f"{POOL}/slivers/{sliver}/root"
    assert node.inside("exp", "setfattr -n trusted.slicemgr.epoch -v 9 / 2>&1; echo tried").endswith("tried\n")
    assert kept(node) == "new\n", "a tenant cannot change the mark"
    mark = f"import os; os.setxattr({root!r}, 'trusted.slicemgr.epoch', b'0')"
    node.box.run(["python3", "-c", mark], check=True)
    words = ["cat", f"{root}/root/file"]  # a login that the end of the sliver interrupts would hang
    eventually(lambda: node.box.run(words).stdout == "old\n", "it is restored again", 60)

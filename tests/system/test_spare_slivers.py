"""Spares on a real node: a create takes one within moments, it becomes the tenant's alone, and nobody gets it twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_faults import start_faulty
from testbed import Node, eventually

READY = (
    "SELECT s.id FROM slivers s JOIN spares p ON p.sliver = s.id WHERE s.phase = 'running' AND s.desired = 'running'"
)
ALL = "SELECT count(*) FROM slivers WHERE slice IS NULL"


@contextmanager
def kept(node: Node, *keep: str) -> Iterator[None]:
    """Within the context, the node keeps these spares; afterwards it has none."""
    with node.other_settings(lambda text: text.replace("keep = []", f"keep = {json.dumps(list(keep))}")):
        yield
    eventually(lambda: node.rows(ALL) == [(0,)], "the spares are gone")


def ready(node: Node, count: int = 1) -> list[str]:
    """The ids of the spares, as soon as there are `count`."""
    found: list[str] = eventually(
        lambda: [row[0] for row in node.rows(READY)] if len(node.rows(READY)) == count else [], "spares", 600
    )
    return found


@pytest.mark.long
def test_a_machine_that_was_ready(node: Node) -> None:
    """First, because the other tests have the node keep a container until the end of the module."""
    node.ensure_machines()
    node.await_machines()
    node.type = "kvm"
    try:
        with kept(node, "kvm image=debian-12-small boot=direct memory=192M disk=2G"):
            (spare,) = ready(node)
            shown = node.create("exp")
            assert (shown["slivers"][0]["id"], shown["warm"]) == (spare, True)
            assert eventually(lambda: node.inside("exp", "hostname").strip() == "exp-0", "it has its name", 60)
            assert node.inside("exp", "cat /etc/hostname").strip() == "exp-0"
            node.ok("restart", "exp")
            assert eventually(lambda: node.ssh("exp", "hostname").stdout.strip(), "it boots", 300) == "exp-0"
            node.delete_all()
    finally:
        node.type = "lxc"


@pytest.fixture(scope="module")
def spares(node: Node) -> Iterator[Node]:
    """The node with one container ready."""
    with kept(node, "lxc image=debian-12"):
        yield node
        node.mend()
        node.delete_all()


@pytest.fixture(autouse=True)
def no_slices(node: Node) -> Iterator[None]:
    yield
    node.mend()
    node.delete_all()


OTHER = ("--memory", "300M", "--cpu", "0.5", "--pids", "200", "--cpu-shares", "512")  # limits than those of the spare


def cold_and_warm(node: Node, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    made = node.create("made", "--cold", *options), node.create("taken", *options)
    assert [one["warm"] for one in made] == [False, True]
    return made


def test_a_spare_becomes_the_tenants(spares: Node) -> None:
    (spare,) = ready(spares)
    assert spares.ok("node", "list", "-c", "spares", "-f", "csv").split() == ["spares", "1"]
    (host_key,) = spares.rows(f"SELECT host_key FROM slivers WHERE id = '{spare}'")[0]
    inside = "hostname; cat /etc/hostname /etc/machine-id; hostname -i; cat /root/.ssh/authorized_keys"
    shown = spares.create("exp", "--disk", "1G")
    (sliver,) = shown["slivers"]
    assert (sliver["id"], sliver["ssh"]["host_key"], shown["warm"]) == (spare, host_key, True)
    name, file, machine, address, *keys = spares.inside("exp", inside).split("\n")
    assert (name, file, address.strip()) == ("exp-0", "exp-0", sliver["address"])
    assert len(machine) == 32
    assert [one for one in keys if one] == [Path(f"{spares.key}.pub").read_text().strip()]
    eventually(lambda: spares.rows(READY) != [(spare,)] and spares.rows(READY), "another one is ready")
    assert ready(spares) != [spare]
    spares.agrees()


LOOK = """
grep -E 'Cap|Seccomp|NoNewPrivs' /proc/self/status
cut -d' ' -f2-4 /proc/mounts
cat /proc/sys/user/max_user_namespaces
ulimit -a
stat -c '%a %U %n' /root/.ssh/* /etc/ssh/*
cat /etc/hosts
df -k /dev/shm
nproc
grep -E 'MemTotal|SwapTotal' /proc/meminfo
"""


@pytest.mark.parametrize("options", [(), OTHER, ("--memory", "2G")], ids=["same", "less", "more"])
def test_it_is_like_one_that_was_made_for_the_slice(spares: Node, options: tuple[str, ...]) -> None:
    ready(spares)
    seen = []
    for shown in cold_and_warm(spares, *options):
        (sliver,), text = shown["slivers"], spares.inside(shown["name"], LOOK)
        for own, word in ((sliver["address"], "ADDRESS"), (sliver["id"], "ID"), (shown["name"], "NAME")):
            text = text.replace(own, word)
        seen.append((re.sub("(subvolid|uid|gid)=[0-9]+", "", text).splitlines(), sliver["limits"]))
    assert len(seen[0][0]) > 30
    assert seen[0] == seen[1]


def test_no_two_share_what_is_secret(spares: Node) -> None:
    ready(spares)
    look = (
        "cat /etc/machine-id; sha256sum </etc/ssh/ssh_host_ed25519_key; sha256sum </var/lib/systemd/random-seed; true"
    )
    cold_and_warm(spares)
    first, second = (spares.inside(name, look).split() for name in ("made", "taken"))
    assert len(first[0]) == 32 and set(first) & set(second) <= {"-"}


def test_the_limits_hold_and_are_those_of_the_next_start(spares: Node) -> None:
    (spare,) = ready(spares)
    spares.create("exp", *OTHER)
    use = "python3 -c 'import time; b = bytearray(600 << 20); print(len(b))'"
    assert spares.ssh("exp", use).returncode != 0, "600 MiB in a sliver with 300 MiB"
    spares.ok("restart", "exp")
    assert spares.show("exp")["slivers"][0]["id"] == spare
    assert spares.inside("exp", "df -k /dev/shm | tail -1").split()[1] == str(150 << 10)
    spares.agrees()


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("before", "limits"),
        ("after", "name"),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("after", "limits"), ("before", "name"))),
        *(pytest.param(one, "keys", marks=pytest.mark.long) for one in ("before", "after")),
    ],
)
def test_a_death_between_taking_and_applying(spares: Node, step: str, moment: str) -> None:
    (spare,) = ready(spares)
    start_faulty(spares, step, moment)
    spares.ok("create", "exp", *spares.wishes(), *OTHER, "--no-wait")
    eventually(lambda: spares.box.daemon("agent") is None, "the agent was killed")
    assert spares.rows(f"SELECT count(*) FROM spares WHERE sliver = '{spare}'") == [(0,)]
    spares.ok("create", "other", *spares.wishes(), "--no-wait")
    spares.start_agent()
    for name in ("exp", "other"):
        spares.ok("wait", name)
    ids = {name: spares.show(name)["slivers"][0]["id"] for name in ("exp", "other")}
    assert ids["exp"] == spare != ids["other"]
    assert [spares.inside(name, "hostname").strip() for name in ids] == ["exp-0", "other-0"]
    spares.agrees()


def test_a_spare_survives_the_agent_and_is_no_garbage(spares: Node) -> None:
    (spare,) = ready(spares)
    before = spares.box.run(["virsh", "-c", "lxc:///system", "domid", f"sm-{spare}"], check=True).stdout
    spares.kill("agent")
    spares.start_agent()
    assert json.loads(spares.ok("gc", "-f", "json")) == []
    assert ready(spares) == [spare]
    assert spares.box.run(["virsh", "-c", "lxc:///system", "domid", f"sm-{spare}"], check=True).stdout == before


def test_nobody_sees_a_spare(spares: Node) -> None:
    ready(spares)
    with spares.client() as admin:
        assert admin.slices.list() == []
        (node,) = admin.nodes.list()
    assert (node["used"]["slivers"], node["used"]["spares"]) == (0, 1)
    assert "spare" not in spares.ok("usage", "-f", "json")

"""`slicectl audit` on a node: its results, its cleanup, and that its probe detects the weaknesses of a control."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import demo
import pytest
from host_node import PRODUCTION
from testbed import BIN, IMAGE, IMAGES, Node
from testbed import eventually as on_node
from tiny_sliver import Slivers, eventually, make_root, tiny_node

from slicemgr import names, wire
from slicemgr.audit import checks, machine, run, shared
from slicemgr.audit import site as place
from slicemgr.audit.checks import Check, Target
from slicemgr.audit.row import Row, Verdict
from slicemgr.audit.sliver import PROGRAM
from slicemgr.bench.frame.slivers import Key
from slicemgr.cli.bench.keys import new_key
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt import capabilities

# Checks that need a pool or more than one sliver of a node do not run in a tiny sliver.
NOT_TINY = {"table 3: quota", "table 3: mount points", "requests to the pool"}
# Checks that a container with libvirt's defaults fails. It passes the others without slicemgr.
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


LONGEST = 3600.0  # seconds of one audit, on an emulated production host


def leftovers(node: Node) -> list[str]:
    """Projects and slices of audits."""
    with node.client() as admin:
        named = [*admin.projects.list(), *admin.slices.list()]
    return [one["name"] for one in named if one["name"].startswith("audit-")]


# On the emulated production host an import runs its appliance inside an emulated machine, for more than 20 minutes.
WITH_REST = () if PRODUCTION else (pytest.param(True, marks=pytest.mark.long),)


@pytest.mark.timeout(LONGEST + 600)
@pytest.mark.parametrize("rest", [False, *WITH_REST], ids=lambda rest: "rest" if rest else "no-rest")
def test_every_check_passes_and_nothing_is_left(node: Node, each_type: str, rest: bool) -> None:
    words = ["--type", each_type, "--image", IMAGES[each_type], "--rest" if rest else "--no-rest"]
    done = node.slicectl("audit", *words, "-f", "json", timeout=LONGEST)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert not [one for one in found["rows"] if one["verdict"] == "fail"]
    assert (done.returncode, found["failed"]) == (0, 0)
    by_kind = {kind: [one for one in found["rows"] if one["kind"] == kind] for kind in (each_type, "node", "rest")}
    assert all(by_kind.values())
    skipped = {one["row"] for one in found["rows"] if one["verdict"] == "not applicable"}
    counted = {f"shared limit: {name}" for name, _, _ in shared.COUNTERS}
    left_out = set() if rest else {"REST routes"}
    assert skipped == left_out | (machine.INAPPLICABLE.keys() | counted if each_type == "kvm" else set())
    assert all(one["seen"] for one in found["rows"]), "a check that does not apply says why"
    assert leftovers(node) == []
    assert json.loads(node.ok("audit", "--last", "-f", "json")) == found


# The rules by which the firewall enters its chains.
JUMPS = {
    "iptables": ("filter INPUT", "filter FORWARD", "raw PREROUTING", "mangle INPUT", "mangle FORWARD"),
    "ip6tables": ("filter INPUT", "filter FORWARD"),
}
REACHED = {"network: a sliver of the same slice", "network: its public port"}  # what must succeed
TABLES = (
    "from slicemgr import config; from slicemgr.agent.measurements import kernel_tables;"
    " print(kernel_tables.read(config.load()))"
)
# Checks that a machine beyond its limits fails. One processor is the minimum, so a limit of half of one is met.
TABLET = "<input type='tablet' bus='virtio'/>"  # any device that our domains do not have
SIZES = {"table 3: memory", "disks", "memory"}


@contextmanager
def a_site(node: Node, sliver_type: str) -> Iterator[tuple[run.Audit, shared.Site]]:
    """The slivers of an audit, with the probe in them."""
    with node.client() as admin, closing(Key(new_key())) as key:
        image, tag = IMAGES[sliver_type], place.new_tag()
        audit = run.Audit(admin, admin.nodes.list()[0]["name"], {sliver_type: image}, key, node.token(), lambda _: None)
        with (
            place.projects(admin, tag, lambda _: None) as projects,
            audit.site(projects, tag, sliver_type, image) as site,
        ):
            yield audit, site


@contextmanager
def unprotected(node: Node, sliver: wire.Sliver) -> Iterator[None]:
    """The node without its rules, and the sliver's link as libvirt makes it, until the agent writes all of it again."""
    link = names.link(sliver["id"])
    lines = [
        f"{program}-{backend} -t {jump.replace(' ', ' -D ')} -j SLICEMGR-{jump.split()[1]}"
        for program, jumps in JUMPS.items()
        for backend in ("legacy", "nft")  # one of them has the rules
        for jump in jumps
    ]
    settings = {f"ipv4/conf/{link}/rp_filter": 0, "ipv4/conf/all/rp_filter": 0, f"ipv6/conf/{link}/disable_ipv6": 0}
    lines += [f"echo {value} > /proc/sys/net/{path}" for path, value in settings.items()]
    lines += [f"ip neigh del {sliver['address']} dev {link}"]
    node.kill("agent")
    try:
        node.box.run(["sh", "-c", "\n".join(lines)])
        yield
    finally:
        node.start_agent()


def plug(node: Node, sliver: wire.Sliver, device: str) -> None:
    """Give a running machine another device, as an administrator could."""
    words = f"virsh -c qemu:///system attach-device {names.domain(sliver['id'])} /dev/stdin --live"
    node.box.run(["sh", "-c", words], input=device, check=True)


def tables(node: Node) -> dict[str, Any]:
    """The tables of the kernel as the agent reports them, without the agent."""
    found: dict[str, Any] = ast.literal_eval(node.box.run([sys.executable, "-c", TABLES], check=True).stdout)
    return found


def failed(rows: Iterable[Row]) -> set[str]:
    return {one.row for one in rows if one.ok is False}


def test_each_row_fails_where_its_protection_is_missing(node: Node, each_type: str) -> None:
    """The same probes in the same slivers, with the protections and without them."""
    with a_site(node, each_type) as (audit, site):
        rows = list(shared.between(site))
        assert failed(rows) == set()
        with unprotected(node, site.attacker.shown):
            weak = replace(site, tables=lambda: tables(node), paused=nullcontext)
            assert failed(shared.between(weak)) == {one.row for one in rows} - REACHED
        if each_type == "kvm":
            promised = audit.target(site)
            assert failed(audit.inside(site, machine.CHECKS, promised)) == set()
            less = replace(promised, memory=promised.memory // 2, disk=promised.disk // 2)
            assert failed(audit.inside(site, machine.CHECKS, less)) == SIZES
            plug(node, site.attacker.shown, TABLET)
            hardware = [one for one in machine.CHECKS if one.row == "hardware"]
            on_node(lambda: failed(audit.inside(site, hardware, promised)), "the added device is found", 60)


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
    """The checks that pass in a sliver, with its full confinement or with libvirt's defaults."""
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
        return checks.judged(check, "lxc", values, target).verdict is Verdict.PASS

    return {one.row: passes(one) for one in asked}


def test_the_probe_finds_the_holes_of_a_container_without_our_confinement(slivers: Slivers) -> None:
    found = probed(slivers, confined=False)
    assert {row for row, ok in found.items() if not ok} >= HOLES


def test_and_none_in_one_that_is_confined(slivers: Slivers) -> None:
    assert [row for row, ok in probed(slivers, confined=True).items() if not ok] == []

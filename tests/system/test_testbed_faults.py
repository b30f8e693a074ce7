"""Whatever dies while a slice over several nodes is made or deleted, it becomes as desired, as its operation says."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import demo
import pytest
from bench_faults import Trial
from boxed_centre import STATE
from boxed_faults import CENTRE, domains, kill, mirror, unsent
from boxed_node import BoxedNode
from boxed_testbed import RECIPE, BoxedTestbed
from testbed import eventually

from slicemgr import names

pytestmark = pytest.mark.long
HEALED = 120  # seconds; the figures are in the benchmark, not here
NODE = ("link", "agent")
AMQP = "5671"


@pytest.fixture(scope="module")
def testbed() -> Iterator[BoxedTestbed]:
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    made = BoxedTestbed("faults-")
    made.destroy()
    try:
        made.start()
        made.centre.slicectl("image", "import", demo.ensure_image(), "--name", RECIPE)
        made.create_slice(demo.ensure_key())  # each node has the image
        made.centre.slicectl("delete", "demo")
        yield made
    finally:
        made.destroy()


@pytest.fixture(autouse=True)
def as_before(testbed: BoxedTestbed) -> Iterator[None]:
    yield
    testbed.start()
    for one in testbed.ask("list"):
        eventually(lambda name=one["name"]: said(testbed, "delete", name), "it is deleted", HEALED)  # type: ignore[misc]
    for node in testbed.nodes.values():
        eventually(lambda node=node: not domains(node), f"{node.name} has no slivers", HEALED)  # type: ignore[misc]


def said(testbed: BoxedTestbed, *words: str) -> bool:
    """Whether `slicectl` succeeded; the service may be away."""
    try:
        testbed.centre.slicectl(*words)
    except subprocess.CalledProcessError:
        return False
    return True


def await_step(node: BoxedNode, step: str) -> None:
    """Wait until the node has begun a step. That is in its rows until the operation has ended, which takes moments."""
    query, end = f"select 1 from operation_steps where name = '{step}'", time.monotonic() + HEALED
    while not mirror(node, query):
        assert time.monotonic() < end, f"{node.name} has not begun {step}"
        time.sleep(0.002)


def strike(testbed: BoxedTestbed, victim: str, moment: str, words: tuple[str, ...]) -> None:
    """Ask for something, kill the victim at the moment, and start it again a moment later.

    The answer to the request may be lost by then.
    """

    def kill_at_step() -> None:
        await_step(testbed.nodes["n1"], moment)
        kill(testbed, victim)

    if moment:
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill_at_step)
            said(testbed, *words, "--no-wait")
            killed.result()
    else:
        testbed.centre.slicectl(*words, "--no-wait")
        kill(testbed, victim)
    time.sleep(1)
    testbed.start()


def last_operation(testbed: BoxedTestbed) -> tuple[str, str]:
    newest = testbed.ask("op", "list")[0]
    return newest["state"], newest["error"] or ""


@pytest.mark.parametrize("moment", ["", "root", "domain", "ssh"])
@pytest.mark.parametrize("victim", [*CENTRE, *NODE])
def test_killed_during_a_create(testbed: BoxedTestbed, victim: str, moment: str) -> None:
    words = (
        "create",
        "exp",
        "--type",
        "lxc",
        "--image",
        RECIPE,
        "--count",
        "3",
        "--ssh-key",
        f"{demo.ensure_key()}.pub",
    )
    strike(testbed, victim, moment, words)
    eventually(lambda: said(testbed, "wait", "exp", "--timeout", "60s"), "the slice runs", HEALED * 2)
    assert last_operation(testbed) == ("done", "")
    slivers = testbed.ask("show", "exp")["slivers"]
    assert {one["node"] for one in slivers} == set(testbed.nodes)
    for one in slivers:
        assert domains(testbed.nodes[one["node"]]) == {names.domain(one["id"])}
        shell = testbed.centre.slicectl("ssh", "-i", demo.ensure_key(), f"exp/{one['index']}", "--", "hostname")
        assert shell == f"exp-{one['index']}\n"
    for node in testbed.nodes.values():
        eventually(lambda node=node: unsent(node) == 0, f"{node.name} has reported", HEALED)  # type: ignore[misc]


@pytest.mark.parametrize("moment", ["", "withdraw", "remove"])
@pytest.mark.parametrize("victim", [*CENTRE, *NODE])
def test_killed_during_a_delete(testbed: BoxedTestbed, victim: str, moment: str) -> None:
    created(testbed, "exp")
    strike(testbed, victim, moment, ("delete", "exp"))
    eventually(lambda: testbed.ask("list") == [], "the slice is deleted", HEALED * 2)
    assert last_operation(testbed) == ("done", "")
    for node in testbed.nodes.values():
        eventually(lambda node=node: not domains(node), f"{node.name} has no slivers", HEALED)  # type: ignore[misc]
        eventually(lambda node=node: not mirror(node, "select 1 from slivers"), "nor rows of them", HEALED)  # type: ignore[misc]


def created(testbed: BoxedTestbed, name: str, *more: str) -> None:
    testbed.centre.slicectl("create", name, *wishes(), *more)


def wishes() -> tuple[str, ...]:
    return ("--type", "lxc", "--image", RECIPE, "--count", "3", "--ssh-key", f"{demo.ensure_key()}.pub")


@contextlib.contextmanager
def dropped(node: BoxedNode, *directions: str) -> Iterator[None]:
    """No packet of the broker passes in these directions, INPUT or OUTPUT."""
    port = {"INPUT": "--sport", "OUTPUT": "--dport"}
    rules = [[one, "-p", "tcp", port[one], AMQP, "-j", "DROP"] for one in directions]
    for rule in rules:
        node.box.run(["iptables", "-I", *rule], check=True)
    try:
        yield
    finally:
        for rule in rules:
            node.box.run(["iptables", "-D", *rule], check=True)


@pytest.mark.parametrize("directions", [("INPUT", "OUTPUT"), ("INPUT",), ("OUTPUT",)], ids=["both", "in", "out"])
def test_no_packet_passes(testbed: BoxedTestbed, directions: tuple[str, ...]) -> None:
    """The part of that node waits; the others are usable; it ends when packets pass again."""
    cut = testbed.nodes["n2"]
    with dropped(cut, *directions):
        testbed.centre.slicectl("create", "exp", *wishes(), "--node", "n1,n2,n3", "--no-wait")
        others = [one for one in testbed.ask("show", "exp")["slivers"] if one["node"] != cut.name]
        assert len(others) == 2
        for one in others:
            login = ("ssh", "-i", str(demo.ensure_key()), f"exp/{one['index']}", "--", "true")
            eventually(lambda login=login: said(testbed, *login), "the others are usable", HEALED)  # type: ignore[misc]
        assert last_operation(testbed)[0] == "running"
        states = {one["node"]: one["state"] for one in testbed.ask("op", "show", newest(testbed))["parts"]}
        assert states["n1"] == states["n3"] == "done" and states[cut.name] in ("queued", "running")
    testbed.centre.slicectl("wait", "exp", "--timeout", f"{HEALED}s")
    assert last_operation(testbed) == ("done", "")


def newest(testbed: BoxedTestbed) -> str:
    return str(testbed.ask("op", "list")[0]["id"])


def test_packets_pass_now_and_then(testbed: BoxedTestbed) -> None:
    cut = testbed.nodes["n2"]
    for number in range(5):
        testbed.centre.slicectl("create", f"exp{number}", *wishes(), "--no-wait")
        with dropped(cut, "INPUT", "OUTPUT"):
            time.sleep(3)
        time.sleep(1)
    for number in range(5):
        testbed.centre.slicectl("wait", f"exp{number}", "--timeout", f"{HEALED}s")
    assert {one["state"] for one in testbed.ask("op", "list")[:5]} == {"done"}


def test_a_node_restored_from_an_old_disk(testbed: BoxedTestbed) -> None:
    """It has slivers that were deleted since, and lacks those that were made: it becomes as the centre says."""
    node = testbed.nodes["n2"]
    created(testbed, "old", "--node", "n1,n2,n3")
    stop_node(node)
    files = {path: path.read_bytes() for path in node.box.path(STATE).glob("mirror.db*")}
    testbed.start()
    testbed.centre.slicectl("delete", "old")
    created(testbed, "new", "--node", "n1,n2,n3")
    eventually(lambda: unsent(node) == 0, "it has reported", HEALED)
    before = mirror(node, "select incarnation from mirror")
    stop_node(node)
    for path in node.box.path(STATE).glob("mirror.db*"):
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)
    testbed.start()
    wanted = {names.domain(one["id"]) for one in testbed.ask("show", "new")["slivers"] if one["node"] == "n2"}
    eventually(lambda: domains(node) == wanted, "it has the slivers of the centre alone", HEALED)
    eventually(lambda: mirror(node, "select incarnation from mirror") > before, "its database is a new one", HEALED)
    testbed.centre.slicectl("stop", "new")
    testbed.centre.slicectl("start", "new")
    assert last_operation(testbed) == ("done", "")


def stop_node(node: BoxedNode) -> None:
    for daemon in ("link", "agent"):
        node.box.signal_daemon(daemon, signal.SIGKILL)


def test_a_node_that_reboots_without_the_broker_starts_its_slivers(testbed: BoxedTestbed) -> None:
    created(testbed, "exp")
    node = testbed.nodes["n2"]
    [mine] = [one for one in testbed.ask("show", "exp")["slivers"] if one["node"] == "n2"]
    kill(testbed, "rabbitmq")
    node.box.reboot()
    node.start_again()
    login = ("ssh", "-i", str(demo.ensure_key()), f"exp/{mine['index']}", "--", "true")
    eventually(lambda: said(testbed, *login), "its sliver runs without the broker", HEALED)
    assert unsent(node) > 0
    testbed.start()
    eventually(lambda: unsent(node) == 0, "it has reported everything", HEALED)


def test_programs_are_killed_at_random(testbed: BoxedTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tools/bench_faults.py`, with fewer slices: nothing is lost or doubled, and operations tell the truth."""
    monkeypatch.setenv("SSL_CERT_FILE", str(testbed.centre.authority))
    trial = Trial(testbed, creates=40, clients=4, seed=7)
    trial.run(HEALED)
    assert not trial.record.problems
    assert trial.record.kills
    assert sum(one.kind == "create" for one in trial.record.requests) + trial.record.refused.total() == 40


@pytest.mark.parametrize("wrong", [3600, -3600])
def test_a_node_whose_clock_is_wrong(testbed: BoxedTestbed, wrong: int) -> None:
    """It joins, fetches the image, runs slivers and shows their consoles; the centre shows and corrects its clock."""
    node = testbed.nodes["n2"]
    testbed.centre.slicectl("node", "remove", "n2", "--yes")
    stop_node(node)
    bases = "btrfs subvolume delete /var/lib/slicemgr/pool/bases/*; rm -f /var/lib/slicemgr/images/*"
    node.box.run(["sh", "-ec", bases], check=True)
    node.daemons.clock = wrong
    try:
        testbed.start()  # it joins with this clock
        began = time.time()
        created(testbed, "exp", "--node", "n1,n2,n3")
        login = ("ssh", "-i", demo.ensure_key(), "exp/1", "--", "hostname")
        assert testbed.centre.slicectl(*login) == "exp-1\n"
        operation = testbed.ask("op", "show", newest(testbed))
        times = [part[when] for part in operation["parts"] for when in ("started_at", "finished_at")]
        assert all(began - 60 < datetime.fromisoformat(one).timestamp() < time.time() + 60 for one in times)

        def measured() -> bool:
            return bool(abs(testbed.ask("node", "show", "n2")["facts"].get("clock_ahead", 0) - wrong) < 5)

        eventually(measured, "the centre shows its clock", HEALED)
        [check] = [one for one in testbed.ask("doctor", "--node", "n2") if one["name"] == "node clock"]
        assert check["ok"] is None and check["detail"].endswith("the centre's")
    finally:
        node.daemons.clock = 0
        stop_node(node)

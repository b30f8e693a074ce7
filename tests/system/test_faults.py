"""After the death of any process at any time, each sliver becomes as desired or an operation has the reason."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from testbed import BIN, DRIVERS, Node, eventually

FAULTY = Path(__file__).with_name("faulty_agent.py")
CREATE_STEPS = ("root", "identity", "publish", "domain", "shape", "verify", "ssh")
RATED = ("--net-in", "20Mbit", "--net-out", "20Mbit")
DELETE_STEPS = ("kill", "withdraw", "remove")
SETTINGS = "/etc/slicemgr/slicemgr.toml"
BOOT = 600  # seconds that an emulated machine may need, as in the settings


@pytest.fixture(autouse=True)
def no_trace(node: Node) -> Iterator[None]:
    """No test leaves a mount or a container's cgroup in the box that no row names."""
    before = traces(node)
    yield
    node.mend()
    node.delete_all()
    eventually(lambda: traces(node) == before, f"the mounts and cgroups are {before} again", 30)


def traces(node: Node) -> list[str]:
    words = "awk '{print $5}' /proc/self/mountinfo; find /sys/fs/cgroup -type d -name '*.libvirt-*'"
    return sorted(node.box.run(["sh", "-c", words], check=True).stdout.split())


def ask(node: Node, *words: str) -> None:
    """Ask without waiting."""
    node.ok(*words, "--no-wait", *(node.wishes() if words[0] == "create" else ()))


both_types = pytest.mark.usefixtures("each_type")
# A machine is long in booting: with libvirtd is the harder case.
who_dies = pytest.mark.parametrize(
    ("each_type", "libvirt"),
    [("lxc", False), *(pytest.param(one, True, marks=pytest.mark.long) for one in ("lxc", "kvm"))],
    indirect=["each_type"],
    ids=["lxc-agent", "lxc-agent-and-libvirtd", "kvm-agent-and-libvirtd"],
)


def start_faulty(
    node: Node, step: str, moment: str, victims: Sequence[int] = (0,), number: int = signal.SIGKILL
) -> None:
    """victims: the processes that get the signal; 0 is the agent itself."""
    node.kill("agent")
    told = (step, moment, ",".join(map(str, victims)), str(int(number)))
    node.start_agent((str(BIN / "python"), str(FAULTY), *told))


def libvirtd(node: Node) -> int:
    daemon = node.box.facts().libvirtd
    assert daemon is not None
    return daemon


def struck(node: Node, victims: Sequence[int]) -> bool:
    """Whether the faults have happened, that of the agent last. Restarts libvirtd."""
    if node.box.daemon("agent") is not None:
        return False
    if any(victims):
        eventually(lambda: node.box.facts().libvirtd is None, "libvirtd was killed, too", 30)
        node.box.libvirtd("start")
    return True


def strike_at_each(
    node: Node, steps: Sequence[str], over: Callable[[], bool], *, libvirt: bool
) -> list[tuple[str, str]]:
    """Kill the agent before and after each step of an operation, one agent after the other. Returns the steps.

    Each agent continues the work of the previous one. `over`: the operation has ended. libvirt: kill libvirtd, too.
    """
    deaths = []
    for step, moment in itertools.product(steps, ("before", "after")):
        victims = (libvirtd(node), 0) if libvirt else (0,)
        start_faulty(node, step, moment, victims)
        eventually(lambda: struck(node, victims) or over(), f"the agent has killed itself {moment} {step}", BOOT)  # noqa: B023
        if node.box.daemon("agent") is None:
            deaths.append((step, moment))
    return deaths


@who_dies
def test_killed_around_each_step_of_create(node: Node, each_type: str, libvirt: bool) -> None:
    ask_while_nobody_listens(node, "create", "exp", *RATED)
    deaths = strike_at_each(node, CREATE_STEPS, lambda: node.show("exp")["state"] == "running", libvirt=libvirt)
    # Slivers survive the death of libvirtd: only the agent begins again.
    assert deaths == list(itertools.product(CREATE_STEPS, ("before", "after")))
    node.start_agent()
    node.ok("wait", "exp", "--timeout", f"{BOOT}s")
    assert node.inside("exp", "id -u") == "0\n"
    node.agrees()


@pytest.mark.long
@who_dies
def test_killed_around_each_step_of_delete(node: Node, each_type: str, libvirt: bool) -> None:
    node.create("exp", *RATED)
    ask_while_nobody_listens(node, "delete", "exp")
    # Containers are ended in bulk: a plan made after that has no kill in it.
    steps = DELETE_STEPS if node.type == "kvm" else DELETE_STEPS[1:]
    deaths = strike_at_each(node, steps, lambda: not node.rows("select 1 from slices"), libvirt=libvirt)
    assert deaths == list(itertools.product(steps, ("before", "after")))
    node.start_agent()
    node.ok("wait", "exp", "--for", "gone", "--timeout", "300s")
    node.agrees()


def ask_while_nobody_listens(node: Node, *words: str) -> None:
    node.kill("agent")
    ask(node, *words)


@both_types
@pytest.mark.parametrize(
    ("action", "step"), [("create", "domain"), pytest.param("delete", "kill", marks=pytest.mark.long)]
)
def test_libvirtd_killed_under_a_living_agent(node: Node, action: str, step: str) -> None:
    if action == "delete":
        node.create("exp", *RATED)
    ask_while_nobody_listens(node, action, "exp", *(RATED if action == "create" else ()))
    daemon = libvirtd(node)
    start_faulty(node, step, "before", (daemon,))
    eventually(lambda: node.box.facts().libvirtd != daemon or (action == "delete" and not slices(node)), "it died", 30)
    node.box.libvirtd("start")
    if action == "create":
        eventually(lambda: node.show("exp")["state"] == "running", "it is made with the new libvirtd", BOOT)
        assert node.inside("exp", "id -u") == "0\n"
    else:
        node.ok("wait", "exp", "--for", "gone", "--timeout", "300s")
    node.agrees()


def slices(node: Node) -> list[str]:
    return [one["name"] for one in json.loads(node.ok("list", "-f", "json"))]


@pytest.fixture
def impatient(node: Node) -> Iterator[Node]:
    """The node, whose agent soon takes a libvirtd that does not answer for a hung one."""
    before = node.box.run(["cat", SETTINGS], check=True).stdout
    write = ["sh", "-c", f"cat > {SETTINGS}"]
    node.box.run(write, input=f'{before}\n[libvirt]\ncall_timeout = "3s"\n', check=True)
    yield node
    node.box.run(write, input=before, check=True)
    node.kill("agent")


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "step", "state"),
    [("create", "domain", "running"), ("stop", "stop", "stopped")],
)
def test_libvirtd_hung_in_the_middle_is_told_and_what_was_asked_for_comes_true(
    impatient: Node, action: str, step: str, state: str
) -> None:
    node, daemon = impatient, libvirtd(impatient)
    node.create("kept")
    if action == "stop":
        node.create("exp")
    start_faulty(node, step, "before", (daemon,), signal.SIGSTOP)
    agent = node.box.daemon("agent")
    try:
        told = node.slicectl(action, "exp", *(node.wishes() if action == "create" else ()))
        assert told.returncode == 1
        assert "libvirt does not answer for lxc" in told.stderr
        assert len(told.stderr.splitlines()) == 1
        assert "libvirt does not answer for lxc" in node.show("exp")["slivers"][0]["error"]
        checks = {one["name"]: one["ok"] for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
        assert checks["libvirt lxc driver"] is False
        assert node.inside("kept", "id -u") == "0\n"
        # Requests are not lost while they cannot be executed.
        assert node.slicectl("create", "later", *node.wishes()).returncode == 1
    finally:
        os.kill(daemon, signal.SIGCONT)
    eventually(lambda: node.show("exp")["state"] == state, "it is so after all", 90)
    eventually(lambda: node.show("later")["state"] == "running", "so is what was asked for meanwhile", 90)
    assert (node.box.facts().libvirtd, node.box.daemon("agent")) == (daemon, agent)
    node.agrees()


def test_web_killed_during_a_create(node: Node) -> None:
    ask(node, "create", "exp", "--count", "3")
    node.kill("web")
    node.start_web()
    node.ok("wait", "exp", "--timeout", "60s")
    node.agrees()


@pytest.mark.parametrize(
    ("each_type", "action", "count"),
    [("lxc", "restart", 4), ("lxc", "kill", 4), pytest.param("kvm", "kill", 1, marks=pytest.mark.long)],
    indirect=["each_type"],
)
def test_libvirtd_gone_in_the_middle(node: Node, each_type: str, action: str, count: int) -> None:
    node.create("kept")
    ask(node, "create", "exp", "--count", str(count))
    node.box.libvirtd(action)
    if action == "kill":
        node.box.libvirtd("start")
    eventually(lambda: node.show("exp")["state"] == "running", "the agent makes what broke again", BOOT)
    node.ok("wait", "exp", "--timeout", f"{BOOT}s")
    assert node.inside("kept", "id -u") == "0\n"
    node.agrees()


@both_types
def test_a_link_that_a_killed_libvirtd_left_is_no_failure(node: Node) -> None:
    ask_while_nobody_listens(node, "create", "exp")
    [(sliver,)] = node.rows("select id from slivers")
    node.box.run(["ip", "link", "add", f"sm{sliver}", "type", "veth", "peer", "left"], check=True)
    node.start_agent()
    node.ok("wait", "exp", "--timeout", f"{BOOT}s")
    [operation] = node.rows(
        "select state, error from operations where kind = 'create' order by created_at desc limit 1"
    )
    assert operation == ("done", "")
    node.agrees()


def test_libvirtd_down_says_so_and_create_ends_when_it_is_back(node: Node) -> None:
    node.box.libvirtd("stop")
    try:
        ask(node, "create", "exp")
        eventually(lambda: node.show("exp")["slivers"][0]["error"], "the sliver says what is wrong", 60)
        assert "libvirt does not answer" in node.show("exp")["slivers"][0]["error"]
        checks = {one["name"]: one["ok"] for one in json.loads(node.slicectl("doctor", "-f", "json").stdout)}
        assert checks["libvirt lxc driver"] is False
    finally:
        node.box.libvirtd("start")
    eventually(lambda: node.show("exp")["state"] == "running", "it is made when libvirtd is back", 300)


def test_hand_made_destroy_is_repaired(node: Node) -> None:
    """Of machines: `test_qemu_killed_is_repaired_and_qemu_hung_can_be_deleted`."""
    sliver = node.create("exp")["slivers"][0]
    node.inside("exp", "echo kept > /root/file; sync")
    node.box.run(["virsh", "-c", DRIVERS[0], "destroy", f"sm-{sliver['id']}"], check=True)
    eventually(lambda: node.ssh("exp", "cat /root/file").stdout == "kept\n", "it runs again with its files", 60)
    assert "repair" in node.ok("event", "list", "--slice", "exp")


@both_types
def test_reboot_of_the_node_brings_everything_back(node: Node) -> None:
    node.create("runs")
    node.create("rests")
    node.inside("runs", "echo kept > /root/file; sync")
    node.ok("stop", "rests")
    node.box.reboot()
    node.box.run([BIN / "slicemgr", "init"], check=True)
    node.start_web()
    node.start_agent()
    node.ok("wait", "runs", "--timeout", f"{BOOT}s")
    assert node.inside("runs", "cat /root/file") == "kept\n"
    assert node.show("rests")["state"] == "stopped"
    node.agrees()


def test_a_second_agent_refuses(node: Node) -> None:
    second = node.box.run([BIN / "slicemgr", "agent"], timeout=30)
    assert second.returncode == 4
    assert "another agent runs" in second.stderr


def test_an_agent_that_ends_at_its_start_is_told_at_once(node: Node) -> None:
    node.kill("agent")
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)ended before it was ready:.*broken"):
        node.start_agent(("sh", "-c", "echo broken; exit 3"))
    assert time.monotonic() - begun < 60
    node.start_agent()


def test_a_host_key_whose_report_was_lost_is_told_again(node: Node) -> None:
    """The state is that of an agent killed after it started the sliver and before it recorded the host key."""
    made = node.create("exp")
    node.kill("agent")
    with closing(sqlite3.connect(node.database)) as database, database:
        database.execute("update slivers set host_key = ''")
    node.start_agent()
    node.ok("wait", "exp", "--timeout", "60s")
    eventually(lambda: node.ssh("exp", "true").returncode == 0, "its host key is known", 30)
    assert node.show("exp")["slivers"][0]["ssh"] == made["slivers"][0]["ssh"]


def test_flushed_rules_are_healed(node: Node) -> None:
    node.create("exp")
    node.box.run(["iptables-legacy", "-t", "nat", "-F"], check=True)
    eventually(lambda: node.ssh("exp", "true").returncode == 0, "the doors are open again", 120)


def test_leftovers_are_shown_and_removed_and_the_foreign_stays(node: Node) -> None:
    node.create("exp")
    pool = "/var/lib/slicemgr/pool"
    node.box.run(["btrfs", "subvolume", "create", f"{pool}/slivers/zzzzzzzz-0"], check=True)
    node.box.run(["btrfs", "subvolume", "create", f"{pool}/mine"], check=True)
    found = json.loads(node.ok("gc", "-f", "json"))
    assert [(one["what"], one["name"]) for one in found] == [("sliver", f"{pool}/slivers/zzzzzzzz-0")]
    node.ok("gc", "--yes")
    assert json.loads(node.ok("gc", "-f", "json")) == []
    assert node.box.run(["test", "-d", f"{pool}/mine"]).returncode == 0
    assert node.inside("exp", "id -u") == "0\n"


def test_nothing_is_left_over_right_after_a_delete(node: Node) -> None:
    """btrfs still frees the subvolumes then, and the agent removes their quota groups afterwards."""
    node.create("exp")
    node.ok("delete", "exp")
    assert json.loads(node.ok("gc", "-f", "json")) == []


def descriptors(node: Node) -> dict[str, int]:
    pids = {"agent": node.box.daemon("agent"), "libvirtd": node.box.daemon("libvirtd")}
    return {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()}


def test_descriptors_are_given_back(node: Node) -> None:
    def live_through(name: str) -> None:
        node.create(name, "--count", "4")
        node.ok("stop", name)
        node.ok("delete", name)

    live_through("first")  # connections, pools and modules that are opened once
    before, slivers = descriptors(node), 12
    for number in range(slivers // 4):
        live_through(f"more-{number}")
    # How many connections are kept depends on how many steps once fell together: fewer than there were slivers.
    few = {name: most + slivers - 1 for name, most in before.items()}
    eventually(lambda: all(now <= few[name] for name, now in descriptors(node).items()), f"at most {few}", 20)


def test_delete_during_create_leaves_nothing(node: Node) -> None:
    ask(node, "create", "exp", "--count", "6")
    time.sleep(0.3)
    node.ok("delete", "exp")
    assert json.loads(node.ok("list", "-f", "json")) == []
    node.agrees()


@pytest.mark.long
def test_a_machine_that_boots_is_not_waited_for_when_it_shall_go(node: Node) -> None:
    """The operation of its creation reports why it ended, and not that there was no banner within the timeout."""
    node.ensure_machines()
    node.type = "kvm"
    try:
        ask(node, "create", "exp")
        eventually(lambda: node.host()["domains"], "it boots")
        node.ok("delete", "exp")
    finally:
        node.type = "lxc"
    create = next(one for one in json.loads(node.ok("op", "list", "-f", "json")) if one["kind"] == "create")
    assert create["state"] == "failed" and "a later request" in create["error"]
    assert "no ssh banner within" not in node.ok("op", "show", create["id"])

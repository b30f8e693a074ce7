"""The units with systemd and pure cgroup v2: their users, and the faults that they and slivers survive."""

from __future__ import annotations

import json
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Node, eventually

MIB = 1 << 20
SCOPES = Path("/sys/fs/cgroup/machine.slice")


def systemctl(node: Node, *words: str) -> str:
    return str(node.box.run(["systemctl", *words], check=True, timeout=300).stdout)


def init_of(node: Node, name: str) -> int:
    """The host's number of the first sliver's init."""
    domain = f"sm-{node.show(name)['slivers'][0]['id']}"
    controller = Path(f"/run/libvirt/lxc/{domain}.pid").read_text()
    return int(Path(f"/proc/{controller}/task/{controller}/children").read_text().split()[0])


def limits(pid: int) -> dict[str, str]:
    """The kernel's limits of the sliver, from the innermost directory that has them."""
    directory = Path("/sys/fs/cgroup") / Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/")
    found: dict[str, str] = {}
    while directory != SCOPES:
        for name in ("memory.max", "pids.max", "cpu.max"):
            file = directory / name
            if file.exists() and name not in found and not file.read_text().startswith("max"):
                found[name] = file.read_text().strip()
        directory = directory.parent
    return found


@pytest.fixture(scope="module")
def slice_here(bare_node: Node) -> Iterator[Node]:
    """One for all of these tests: it survives each of them."""
    bare_node.create("exp", "--memory", "128M", "--pids", "99", "--cpu", "0.5")
    yield bare_node
    bare_node.ok("delete", "exp")
    bare_node.agrees()


def test_this_is_a_production_like_host() -> None:
    assert Path("/run/systemd/system").is_dir()
    assert Path("/sys/fs/cgroup/cgroup.controllers").exists()


def test_web_has_no_privileges_and_the_agent_is_root(bare_node: Node) -> None:
    web = Path(f"/proc/{bare_node.box.daemon('web')}/status").read_text()
    user = bare_node.box.run(["id", "-u", "slicemgr"], check=True).stdout.strip()
    assert f"Uid:\t{user}\t{user}" in web
    assert "CapBnd:\t0000000000000000" in web
    assert "Uid:\t0\t0" in Path(f"/proc/{bare_node.box.daemon('agent')}/status").read_text()


def test_somebody_else_logs_in_through_the_port(slice_here: Node) -> None:
    ssh = slice_here.show("exp")["slivers"][0]["ssh"]
    words = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", str(slice_here.key)]
    outside = ["ip", "netns", "exec", "users", "ssh", *words, "-p", str(ssh["port"]), f"root@{ssh['host']}", "hostname"]
    assert slice_here.box.run(outside, timeout=300).stdout == "exp-0\n"


def test_a_sliver_outlives_everything_that_made_it(slice_here: Node) -> None:
    before = init_of(slice_here, "exp")
    systemctl(slice_here, "restart", "libvirtd")
    systemctl(slice_here, "restart", "slicemgr-agent", "slicemgr-web")
    slice_here.mend()
    assert slice_here.inside("exp", "id -u") == "0\n"
    assert init_of(slice_here, "exp") == before


def test_killed_units_come_back(slice_here: Node) -> None:
    for unit in ("agent", "web"):
        old = slice_here.box.daemon(unit)
        systemctl(slice_here, "kill", "-s", "KILL", f"slicemgr-{unit}")
        eventually(lambda unit=unit, old=old: slice_here.box.daemon(unit) not in (None, old), f"{unit} is back", 300)  # type: ignore[misc]
    slice_here.mend()
    assert slice_here.show("exp")["state"] == "running"


def test_limits_stand_a_daemon_reload(slice_here: Node) -> None:
    wanted = {"memory.max": str(128 * MIB), "pids.max": "99", "cpu.max": "50000 100000"}
    pid = init_of(slice_here, "exp")
    assert limits(pid) == wanted
    systemctl(slice_here, "daemon-reload")
    assert limits(pid) == wanted


def test_the_importer_is_a_system_user_and_confined(bare_node: Node) -> None:
    checks = {one["name"]: one for one in json.loads(bare_node.slicectl("doctor", "-f", "json").stdout)}
    uid = pwd.getpwnam("slicemgr-import").pw_uid
    assert (checks["importer"]["ok"], checks["importer"]["detail"]) == (True, f"confined as uid {uid}")


def test_doctor_says_how_disks_are_limited(bare_node: Node) -> None:
    checks = {one["name"]: one for one in json.loads(bare_node.ok("doctor", "-f", "json"))}
    assert any(mode in checks["disk quota"]["detail"] for mode in ("simple", "full")), checks["disk quota"]

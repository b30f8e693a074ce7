"""A virtual machine where slicemgr will run: under systemd, AppArmor and pure cgroup v2. Emulated twice over."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbed import Node, eventually

MIB = 1 << 20
SLOW = 1500  # seconds: a machine in a machine, both emulated


@pytest.mark.timeout(SLOW)
def test_a_virtual_machine_from_request_to_root_shell(node: Node) -> None:
    eventually(node.runs_machines, "the agent has found out that machines are emulated here", 600)
    node.kind = "kvm"
    try:
        node.ok("create", "vm", *node.wishes(), timeout=SLOW)
    finally:
        node.kind = "lxc"
    assert node.inside("vm", "id -u; hostname", timeout=300).split() == ["0", "vm-0"]
    sliver = node.show("vm")["slivers"][0]
    assert (sliver["acceleration"], sliver["booted"]) == ("emulation", "yes")
    process = Path("/proc") / Path(f"/run/libvirt/qemu/sm-{sliver['id']}.pid").read_text()
    assert (process / "attr/current").read_text().startswith("libvirt-"), "AppArmor confines QEMU"
    scope = Path("/sys/fs/cgroup") / (process / "cgroup").read_text().strip().removeprefix("0::/")
    limits = [file.read_text().strip() for one in (scope, *scope.parents) for file in one.glob("memory.max")]
    assert str((192 + 384) * MIB) in limits

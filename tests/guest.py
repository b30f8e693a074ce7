"""A machine that is booted once, for the tests that leave it as they found it: its boot is emulated, and long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from testbed import Node


@dataclass(frozen=True, slots=True)
class Guest:
    """A slice of one machine. name: of the slice; made: the slice as it was when it had booted."""

    node: Node
    name: str
    made: dict[str, Any]

    def sliver(self) -> dict[str, Any]:
        """As the service shows it."""
        return dict(self.node.show(self.name)["slivers"][0])

    def inside(self, command: str, timeout: float = 300) -> str:
        """What a command that must succeed prints in it."""
        return self.node.inside(self.name, command, timeout)

    def qemu(self) -> int:
        """Its process."""
        return qemu(self.node, self.made["slivers"][0]["id"])


def qemu(node: Node, sliver: str) -> int:
    """The process of a sliver's machine."""
    return int(node.box.run(["cat", f"/run/libvirt/qemu/sm-{sliver}.pid"], check=True).stdout)


@contextmanager
def booted(node: Node, name: str = "guest") -> Iterator[Guest]:
    """It is no other test's to delete; at the end nothing of it is left."""
    node.ensure_machines()
    node.kept.add(name)
    node.kind = "kvm"
    try:
        made = node.create(name)
    finally:
        node.kind = "lxc"
    yield Guest(node, name, made)
    node.kept.remove(name)
    node.ok("delete", name)
    node.agrees()

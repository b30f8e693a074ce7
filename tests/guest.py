"""A machine that is booted once, for tests that do not change it: its emulated boot takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from testbed import Node


@dataclass(frozen=True, slots=True)
class Guest:
    """A slice of one machine. name: of the slice. made: the slice after its boot."""

    node: Node
    name: str
    made: dict[str, Any]

    def sliver(self) -> dict[str, Any]:
        """The sliver as the service shows it."""
        return dict(self.node.show(self.name)["slivers"][0])

    def inside(self, command: str, timeout: float = 300) -> str:
        """The output of a command in the machine, which must succeed. timeout: seconds."""
        return self.node.inside(self.name, command, timeout)

    def qemu(self) -> int:
        """The process ID of the machine."""
        return qemu(self.node, self.made["slivers"][0]["id"])


def qemu(node: Node, sliver: str) -> int:
    """The process ID of a sliver's machine."""
    return int(node.box.run(["cat", f"/run/libvirt/qemu/sm-{sliver}.pid"], check=True).stdout)


@contextmanager
def booted(node: Node, name: str = "guest", *options: str) -> Iterator[Guest]:
    """A machine that no test deletes; it is deleted at the end. options: of its creation."""
    node.ensure_machines()
    node.kept.add(name)
    node.type = "kvm"
    try:
        made = node.create(name, *options)
    finally:
        node.type = "lxc"
    yield Guest(node, name, made)
    node.kept.remove(name)
    node.ok("delete", name)
    node.agrees()

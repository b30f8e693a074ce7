"""Select the node for a slice, and start operations on a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import Boot, Init, NodeState, SliceSpec, SliverType
from slicemgr.policy import access, allocate
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, as its agent last reported it."""

    name: str
    facts: Mapping[str, Any]
    cursors: allocate.Cursors

    @property
    def capacity(self) -> allocate.Node:
        def number(name: str) -> int | None:
            value = self.facts.get(name)
            return int(value) if isinstance(value, int | float) else None

        return allocate.Node(self.name, number("cpus"), number("memory"), number("disk_total"))


def choose(c: Connection, name: str | None, *, placing: bool = False) -> NodeRow:
    """The node called `name`, or the first one. Refused if there is none (yet).

    placing: for new slivers, which a drained node does not get.
    """
    n = t.nodes.c
    query = sa.select(n.name, n.facts, n.next_address, n.next_port, n.next_uid, n.drained).order_by(n.name)
    own = n.identity.is_(None)  # the agents of other nodes do not receive slivers yet
    rows = c.execute(query.where(n.state == NodeState.ACTIVE, own)).all()
    if not rows:
        raise Refused(Code.UNAVAILABLE, "no node has a running agent", hint="start `slicemgr agent` on the node")
    named = [row for row in rows if name in (None, row.name)]
    if not named:
        raise invalid("node", f"{name!r} is unknown", f"the nodes are {', '.join(row.name for row in rows)}")
    row = next((row for row in named if not (placing and row.drained)), None)
    if row is None:
        message = "every node is drained" if name is None else f"node {name} is drained"
        raise Refused(Code.UNAVAILABLE, message, hint="an admin ends that with `slicectl node undrain`", field="node")
    return NodeRow(row.name, row.facts, allocate.Cursors(*row[2:5]))


def check_able(node: NodeRow, spec: SliceSpec) -> None:
    """Refused unless the node supports everything that the specification needs."""
    types = node.facts.get("kinds", {})
    if not types.get(spec.type.value, False):
        able = [one.value for one in SliverType if types.get(one.value)]
        reason = node.facts.get("kinds_reason", {}).get(spec.type.value, f"its libvirt does not support {spec.type}")
        raise invalid(
            "type", f"node {node.name} cannot run {spec.type}: {reason}", f"supported types: {', '.join(able) or '-'}"
        )
    cpus = node.capacity.cpus
    if cpus is not None and spec.limits.cpu > cpus:
        raise invalid(
            "cpu", f"{spec.limits.cpu:g} CPU cores exceed the capacity of node {node.name}", f"at most {cpus}"
        )
    if spec.boot is Boot.UEFI and not node.facts.get("uefi", False):
        raise invalid("boot", f"node {node.name} has no UEFI firmware", "install the package ovmf on the node")
    if spec.init is Init.SYSTEMD and not node.facts.get("inits", {}).get(Init.SYSTEMD.value, False):
        reason = node.facts.get("inits_reason", "its agent is of an earlier version")
        raise invalid("init", f"node {node.name} cannot run systemd in containers: {reason}", "use minimal")
    if spec.limits.io_weight is not None and not node.facts.get("io_weight", False):
        reason = "its kernel has no I/O controller that supports weights"
        raise invalid("io_weight", f"node {node.name} does not support this: {reason}", "omit this field")
    for field in ("net_in", "net_out"):
        if getattr(spec.limits, field) is not None and not node.facts.get("net_rate", False):
            lacks = ", ".join(node.facts.get("net_rate_missing", ())) or "support for rate limits"
            raise invalid(field, f"node {node.name} does not support this: its kernel lacks {lacks}", "omit this field")


def request(store: Store, config: Config, name: str, kind: str, by: Principal, params: Mapping[str, Any]) -> str:
    """Start an operation on a node, such as `doctor` or `gc`; the operation's id."""
    access.run_on_node(by, kind)
    with store.write() as c:
        n = t.nodes.c
        row = c.execute(sa.select(n.state, n.identity).where(n.name == name)).first()
        if row is None:
            raise Refused(Code.NOT_FOUND, f"there is no node {name!r}", field="node")
        if row.state != NodeState.ACTIVE or row.identity is not None:
            hint = "only nodes whose agent uses the database itself take operations"
            raise Refused(Code.CONFLICT, f"the agent of node {name} cannot be reached yet", hint=hint)
        now = utcnow()
        operation = operations.add(c, kind, operations.Subject(name), by.user, now, params)
        operations.note(c, by.user, kind, now, detail=name, address=by.address)
    wake(config.wake_socket)
    return operation

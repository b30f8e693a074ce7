"""The operations on the node or on images: a table with the function for each kind.

Operations on slivers are not in it: the scheduler works on each of their slivers in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sqlalchemy.engine import Connection

from slicemgr.agent import doctor, garbage
from slicemgr.agent.checks import broker, testbed
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.image_source import Source
from slicemgr.agent.images import Importer, Steps
from slicemgr.agent.measurements import baseline, kernel_tables, raw_slivers
from slicemgr.agent.measurements.loads import Measurer
from slicemgr.agent.measurements.pressure import Pressure
from slicemgr.agent.node import Node
from slicemgr.agent.node_images import NodeImages
from slicemgr.drivers.libvirt import launch
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Image, OperationState, Sliver, SliverType
from slicemgr.store import allocations, incarnation, pending

Result = dict[str, object]
_CLEANED = 60.0  # seconds for which `gc` waits until btrfs has freed deleted subvolumes


class NodeOperations:
    """Carries out operations, one at a time in each thread that calls it. source: of images, on a node of a testbed."""

    def __init__(self, node: Node, memory: MemoryController, source: Source | None = None) -> None:
        self.node = node
        self.importer = Importer(node.config, node.pool, node.journal, node.machines, node.stop, source)
        self.node_images = NodeImages(node, self.importer, source)
        self.measurer = Measurer(node.config, node.pool, node.stop)
        self.pressure = Pressure(memory, node.stop)

    def serve(self, operation: pending.Operation) -> Result:
        """Carry out the operation and return its result. Raises Refused for an unknown kind, or as its function."""
        function = TABLE.get(operation.kind)
        if function is None:
            message = f"this agent does not support the operation {operation.kind!r}"
            raise Refused(Code.INVALID, message, hint="update it")
        return function(self, operation)

    def images(self) -> list[Image]:
        """The images of all rows. Raises as `queries.awaited`."""
        return self.node.query(pending.images)


def _import(parts: NodeOperations, operation: pending.Operation) -> Result:
    return parts.importer.add(operation)


def _delete_image(parts: NodeOperations, operation: pending.Operation) -> Result:
    return parts.importer.remove(operation)


def _push_image(parts: NodeOperations, operation: pending.Operation) -> Result:
    steps = Steps(parts.node.journal, operation.id)
    try:
        parts.node_images.push(operation.image, steps)
    except Exception:
        steps.end(OperationState.FAILED)
        raise
    steps.end(OperationState.DONE)
    return {"sha256": operation.image}


def _drop_image(parts: NodeOperations, operation: pending.Operation) -> Result:
    parts.node_images.drop(operation.image)
    return {"sha256": operation.image}


def _doctor(parts: NodeOperations, _: pending.Operation) -> Result:
    node = parts.node
    checks = doctor.examine(node.config, node.hypervisor, node.pool, node.firewall, node.machines.found)
    wrong, held = node.query(lambda connection: (allocations.differences(connection), incarnation.held(connection)))
    checks += [*broker.checks(node.config), testbed.hold(held), testbed.counters(list(wrong))]
    return doctor.report(checks)


def _io(parts: NodeOperations, operation: pending.Operation) -> Result:
    return {"measured": parts.measurer.io(parts.images(), operation.params)}


def _sysbench(parts: NodeOperations, operation: pending.Operation) -> Result:
    return {"measured": parts.measurer.sysbench(operation.params)}


def _memory(parts: NodeOperations, operation: pending.Operation) -> Result:
    if operation.state is OperationState.RUNNING:  # a lack of memory that ended the agent would end it again
        raise Failed("the agent ended during the measurement", hint="measure again")
    return {"measured": parts.pressure.measure(operation.params)}


def _kernel_tables(parts: NodeOperations, _: pending.Operation) -> Result:
    return {"tables": kernel_tables.read(parts.node.config)}


def _baseline(parts: NodeOperations, operation: pending.Operation) -> Result:
    node = parts.node
    found = node.machines.found
    if operation.params["type"] == SliverType.KVM and (found is None or not found.acceleration):
        raise Refused(
            Code.INVALID,
            "this node cannot run virtual machines, or its check has not ended",
            hint="`slicectl node show`",
        )
    place = node.machines.place(launch.host(node.config))
    images = parts.images()
    host = raw_slivers.Host(node.config, node.hypervisor, node.pool, place)
    node.raw_slivers.set()
    try:
        return baseline.measure(host, images, operation.params)
    finally:
        node.raw_slivers.clear()


def _collect_garbage(parts: NodeOperations, operation: pending.Operation) -> Result:
    node = parts.node
    node.query(lambda connection: incarnation.refuse_during_hold(connection, "remove leftovers"))
    if node.raw_slivers.is_set() or parts.measurer.is_busy():
        raise Refused(
            Code.CONFLICT,
            "a measurement is running, and its slivers are not in the database",
            hint="try again when it has ended",
        )

    def rows(connection: Connection) -> tuple[list[Sliver], list[Image]]:
        slivers = pending.slivers(connection, node.config.node.name)
        return [row.sliver for row in slivers], pending.images(connection)

    def wanted() -> garbage.Wanted:
        return garbage.Wanted.of(*node.query(rows), parts.node_images.kept())

    found = garbage.find(node.config, node.hypervisor, node.pool, wanted)
    freed = partial(node.pool.wait_cleaned, _CLEANED)
    return dict(garbage.collect(found, apply=bool(operation.params.get("apply")), freed=freed))


TABLE: Mapping[str, Callable[[NodeOperations, pending.Operation], Result]] = {
    "image-import": _import,
    "image-delete": _delete_image,
    "image-push": _push_image,
    "image-drop": _drop_image,
    "doctor": _doctor,
    "gc": _collect_garbage,
    "baseline": _baseline,
    "io": _io,
    "sysbench": _sysbench,
    "memory": _memory,
    "tables": _kernel_tables,
}

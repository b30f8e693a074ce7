"""The node as the parts of its agent share it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.engine import Connection

from slicemgr.agent import queries
from slicemgr.agent.acceleration import Machines
from slicemgr.agent.journal import Journal
from slicemgr.agent.publisher import Publisher
from slicemgr.config import Config
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.record import node_facts
from slicemgr.store import Store, pending

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its drivers, and the other objects that the parts of its agent share.

    raw_slivers: set while slivers without rows run, because a measurement creates them.
    """

    config: Config
    store: Store
    journal: Journal
    stop: threading.Event
    hypervisor: Hypervisor
    pool: Pool
    firewall: Firewall
    publisher: Publisher
    machines: Machines
    raw_slivers: threading.Event

    @classmethod
    def open(cls, config: Config, store: Store, journal: Journal, stop: threading.Event) -> Node:
        """A node with new drivers. It changes nothing on the host. stop: set when the agent is to end."""
        firewall = Firewall(config.network)
        return cls(
            config,
            store,
            journal,
            stop,
            hypervisor=Hypervisor(config.libvirt),
            pool=Pool(config.node.pool),
            firewall=firewall,
            publisher=Publisher(firewall),
            machines=Machines(config),
            raw_slivers=threading.Event(),
        )

    def query(self, query: Callable[[Connection], T]) -> T:
        """The result of a query of the rows. Raises as `queries.awaited`."""
        return queries.awaited(self.store, self.stop, query)

    def announce(self) -> None:
        """Write the node's properties to the store."""
        node = self.config.node
        facts = node_facts.gather(self.config, self.pool, self.hypervisor, self.machines.found)
        self.journal.add(pending.NodeSeen(node.name, node.address, facts))

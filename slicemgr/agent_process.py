"""The process `slicemgr agent`: makes drivers, journal, workers and what runs beside them, and runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from slicemgr.agent import startup
from slicemgr.agent.agent_lock import only_one
from slicemgr.agent.apply import Applier
from slicemgr.agent.chores.capture_rings import Captures
from slicemgr.agent.chores.proc_views import ProcViews
from slicemgr.agent.chores.recorder import Recorder
from slicemgr.agent.consoles import Consoles
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_operations import NodeOperations
from slicemgr.agent.plan_execution import PlanExecutor
from slicemgr.agent.reconcile import Reconciler
from slicemgr.agent.scheduler import Scheduler
from slicemgr.config import Config
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed
from slicemgr.store import Store


def run(config: Config, store: Store, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Be the node's agent until `stop` is set. Refused if another agent runs on this node.

    ready: called when the agent is about to take operations.
    """
    with ExitStack() as stack:
        stack.enter_context(only_one(config.node.run_dir / "agent.lock"))
        journal = stack.enter_context(Journal(store, stop.set))
        node = Node.open(config, store, journal, stop)
        startup.prepare(node)
        applier = Applier(config, node.hypervisor, node.pool, node.publisher, journal, node.machines, stop)
        executor = PlanExecutor(config, node.hypervisor, applier, stop)
        scheduler = Scheduler(config, store, journal, executor, Reconciler(node), NodeOperations(node).serve, stop)
        node.hypervisor.on_change(scheduler.changed)
        stack.enter_context(ProcViews(ProcView(config.node.run_dir), node.hypervisor.container_inits))
        stack.enter_context(Consoles(config, store, node.hypervisor))
        stack.enter_context(Captures(config))
        stack.enter_context(Recorder(config, store, Pool(config.node.pool), node.hypervisor.machine_stats))
        ready()
        scheduler.run()
        if journal.broke:
            raise Failed("the agent could not write its reports", hint="see the log of the agent, and restart it")

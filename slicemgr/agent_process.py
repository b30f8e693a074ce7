"""The process `slicemgr agent`: makes drivers, journal, workers and what runs beside them, and runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from slicemgr.agent import doctor, startup
from slicemgr.agent.agent_lock import only_one
from slicemgr.agent.apply import Applier
from slicemgr.agent.chores.capture_rings import Captures
from slicemgr.agent.chores.proc_views import ProcViews
from slicemgr.agent.chores.recorder import Recorder
from slicemgr.agent.chores.runner import Chore, Runner
from slicemgr.agent.consoles import Consoles
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_operations import NodeOperations
from slicemgr.agent.plan_execution import PlanExecutor
from slicemgr.agent.reconcile import Reconciler
from slicemgr.agent.scheduler import Scheduler
from slicemgr.config import Config
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.libvirt import acceleration
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed
from slicemgr.service.leases import leases
from slicemgr.service.nodes import retention
from slicemgr.service.outbound import mail
from slicemgr.service.projects import invitations
from slicemgr.store import Store

_ROWS_INTERVAL = 60.0  # seconds


def run(config: Config, store: Store, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Be the node's agent until `stop` is set. Refused if another agent runs on this node.

    ready: called when the agent is about to take operations.
    """
    with ExitStack() as stack:
        stack.enter_context(only_one(config.node.run_dir / "agent.lock"))
        journal = stack.enter_context(Journal(store, config.node.name, stop.set))
        node = Node.open(config, store, journal, stop)
        startup.prepare(node)
        applier = Applier(config, node.hypervisor, node.pool, node.publisher, journal, node.machines, stop)
        executor = PlanExecutor(config, node.hypervisor, applier, stop)
        scheduler = Scheduler(config, store, journal, executor, Reconciler(node), NodeOperations(node).serve, stop)
        node.hypervisor.on_change(scheduler.changed)
        stack.enter_context(Consoles(config, store, node.hypervisor))
        stack.enter_context(Runner([*host_chores(node), *row_chores(config, store)]))
        ready()
        scheduler.run()
        if journal.broke:
            raise Failed("the agent could not write its reports", hint="see the log of the agent, and restart it")


def checks(config: Config) -> list[doctor.Check]:
    """Whether this host has everything that an agent needs."""
    found = acceleration.find(config.libvirt.acceleration, config.node.state_dir / "acceleration.json")
    pool, firewall = Pool(config.node.pool), Firewall(config.network)
    return doctor.examine(config, Hypervisor(config.libvirt), pool, firewall, found)


def host_chores(node: Node) -> list[Chore]:
    """What keeps the host in order and measures it."""
    config, hypervisor = node.config, node.hypervisor
    return [
        *ProcViews(ProcView(config.node.run_dir), hypervisor.container_inits).chores(),
        *Captures(config).chores(),
        Recorder(config, node.store, node.pool, hypervisor.machine_stats).chore(),
    ]


def row_chores(config: Config, store: Store) -> list[Chore]:
    """What is due in the rows: leases that end, history that is deleted, mail.

    Mail has a thread of its own: a mail server that does not answer delays the end of no lease.
    """
    leases_thread, mail_thread = "leases", "mail"
    work: list[tuple[str, Callable[[Store, Config], object]]] = [
        (leases_thread, leases.expire),
        (leases_thread, retention.forget),
        (mail_thread, invitations.notify),
        (mail_thread, mail.deliver),
    ]
    return [
        Chore(
            thread=thread,
            run=partial(function, store, config),
            interval=_ROWS_INTERVAL,
            failure=function.__name__,
            each_failure=True,
        )
        for thread, function in work
    ]

"""The process `slicemgr agent`: makes drivers, journal, workers and what runs beside them, and runs them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from slicemgr.agent import doctor, startup
from slicemgr.agent.agent_lock import only_one
from slicemgr.agent.apply import Applier
from slicemgr.agent.checks import broker
from slicemgr.agent.checks.result import Check
from slicemgr.agent.chores.capture_rings import Captures
from slicemgr.agent.chores.guest_memory import GuestMemory
from slicemgr.agent.chores.idle_scans import IdleScans
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.chores.proc_views import ProcViews
from slicemgr.agent.chores.recorder import Recorder
from slicemgr.agent.chores.runner import Chore, First, Runner, repeated
from slicemgr.agent.consoles import Consoles
from slicemgr.agent.fence import Fence
from slicemgr.agent.image_exchange import ImageExchange
from slicemgr.agent.image_offers import ImageOffers
from slicemgr.agent.image_source import Source
from slicemgr.agent.image_waits import ImageWaits
from slicemgr.agent.journal import Journal
from slicemgr.agent.kept_disks import SWEEP, KeptDisks
from slicemgr.agent.node import Node
from slicemgr.agent.node_operations import NodeOperations
from slicemgr.agent.plan_execution import PlanExecutor
from slicemgr.agent.questions import Questions
from slicemgr.agent.reconcile import Reconciler
from slicemgr.agent.scheduler import Scheduler
from slicemgr.certificates import member
from slicemgr.certificates.member import Member
from slicemgr.config import Config
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.kernel.throttle import Throttle
from slicemgr.drivers.libvirt import acceleration
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed
from slicemgr.service import due
from slicemgr.service.nodes import image_files
from slicemgr.store import Store
from slicemgr.store.updates import utcnow


def run(config: Config, store: Store, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Be the node's agent until `stop` is set. Refused if another agent runs on this node.

    ready: called when the agent is about to take operations.
    """
    with ExitStack() as stack:
        stack.enter_context(only_one(config.node.run_dir / "agent.lock"))
        link = config.link_socket if config.joined else None
        journal = stack.enter_context(Journal(store, config.node.name, stop.set, link))
        node = Node.open(config, store, journal, stop)
        startup.prepare(node)
        applier = Applier(config, node.hypervisor, node.pool, node.publisher, journal, node.machines, stop)
        executor = PlanExecutor(config, node.hypervisor, applier, stop)
        joined = member.find(config.membership_dir)
        stack.enter_context(node.hypervisor.balloons.kept(config.node.run_dir / "balloons.lock"))
        guests = GuestMemory(config, store, node.hypervisor.balloons)
        throttle = Throttle()
        stack.enter_context(throttle.kept(config.node.run_dir / "throttle.lock"))
        memory = MemoryController(config, node.store, guests=guests, throttle=throttle)
        scans = stack.enter_context(IdleScans(config.node.run_dir, lambda: memory.mode != "off"))
        memory.idle = scans.idle
        operations = NodeOperations(node, memory, _source(config, joined, stop, stack) if joined else None)
        waits = ImageWaits(operations.node_images, journal) if joined else None
        disks = KeptDisks(config, node.hypervisor, node.pool, node.publisher)
        fence = Fence(node, disks) if joined else None
        scheduler = Scheduler(config, store, journal, executor, Reconciler(node), operations.serve, stop, waits, fence)
        node.hypervisor.on_change(scheduler.changed)
        if config.hub.broker and joined is None:
            stack.enter_context(ImageOffers(config, partial(_judge, store)))
        stack.enter_context(Consoles(config, store, node.hypervisor))
        if joined is not None:
            stack.enter_context(Questions(config, store))
        sweep = Chore(
            thread="kept", run=disks.sweep, interval=SWEEP, failure="deleting kept disks", first=First.AT_ONCE
        )
        stack.enter_context(
            Runner(
                [*host_chores(node, memory), scans.chore(), *row_chores(config, store), *([sweep] if joined else [])]
            )
        )
        ready()
        gc.freeze()  # else each full collection searches the modules again, and stops all threads for 60 ms
        scheduler.run()
        if journal.broke:
            raise Failed("the agent could not write its reports", hint="see the log of the agent, and restart it")


def _source(config: Config, member: Member, stop: threading.Event, stack: ExitStack) -> Source:
    """Where images come from. What it starts ends with the stack."""
    exchange = stack.enter_context(ImageExchange(config, member)) if config.exchange.port else None
    return Source(member, stop, exchange=exchange)


def _judge(store: Store, token: str, sha256: str, base: bool) -> tuple[str, int]:
    granted = image_files.judge(store, token, sha256, utcnow(), base=base)
    return granted.format, granted.size


def checks(config: Config) -> list[Check]:
    """Whether this host has everything that an agent needs, which need not run."""
    found = acceleration.find(config.libvirt.acceleration, config.node.state_dir / "acceleration.json")
    pool, firewall = Pool(config.node.pool), Firewall(config.network)
    found_here = doctor.examine(config, Hypervisor(config.libvirt), pool, firewall, found, in_agent=False)
    return [*found_here, *broker.checks(config)]


def host_chores(node: Node, memory: MemoryController) -> list[Chore]:
    """What keeps the host in order and measures it."""
    config, hypervisor = node.config, node.hypervisor
    return [
        *ProcViews(ProcView(config.node.run_dir), hypervisor.container_inits).chores(),
        *Captures(config).chores(),
        *memory.chores(),
        Recorder(config, node.store, node.pool, hypervisor.machine_stats, memory.reclaimed).chore(),
    ]


def row_chores(config: Config, store: Store) -> list[Chore]:
    """What is due in the rows; in a testbed with a hub, the hub does it."""
    if config.joined or config.hub.broker:
        return []
    return repeated(due.WORK, store, config)

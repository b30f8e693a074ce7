"""Puts the agent of one node together and runs it: drivers, journal, workers, and the look at everything."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from slicemgr import names
from slicemgr.agent import observe
from slicemgr.agent.apply import Applier
from slicemgr.agent.chores import file_modes
from slicemgr.agent.chores.capture_rings import Captures
from slicemgr.agent.chores.proc_views import ProcViews
from slicemgr.agent.chores.recorder import Recorder
from slicemgr.agent.consoles import Consoles
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_operations import NodeOperations
from slicemgr.agent.plan import Step, plan
from slicemgr.agent.reconcile import Converger
from slicemgr.agent.scheduler import Agent
from slicemgr.config import Config
from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.kernel import capture_rings, cgroup
from slicemgr.drivers.network import fragments
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.model import Kind
from slicemgr.store import Store, pending

log = logging.getLogger(__name__)

_TELL_AGAIN = 60.0  # seconds before a guest is tried again that could not be told its ssh keys
_FIRST_RETRY, _LONGEST_RETRY = 5.0, 600.0  # seconds before a broken sliver is tried again by itself


class Upkeep:
    """Reconciles."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = node.config
        self._journal = node.journal
        self._hypervisor = node.hypervisor
        self._pool = node.pool
        self._publisher = node.publisher
        self._machines = node.machines
        self._trouble: dict[str, tuple[float, float]] = {}  # sliver → (not before, wait after that)
        self._told: dict[str, float] = {}  # sliver → not before, for ssh keys that it could not be told

    def begin(self) -> None:
        """Bring up what all slivers share. Raises Refused or Failed with what the node lacks."""
        for directory, mode in (
            (self._config.node.run_dir / "launch", 0o700),
            (observe.settled_dir(self._config), 0o700),
        ):
            directory.mkdir(mode=mode, parents=True, exist_ok=True)
        file_modes.tighten(self._config)
        cgroup.collect_importers()
        self._pool.check()
        self._pool.ensure_layout()
        log.info("disk quota: %s", self._pool.enable_quota())
        self._bound_kernel_memory()
        with self._node.store.read() as connection:
            rows = pending.slivers(connection, self._config.node.name)
        self._note_keys(rows)
        self._publisher.reset(row.sliver for row in rows)
        self._node.announce()
        self._machines.look(self._node.announce)

    def _bound_kernel_memory(self) -> None:
        """What cannot be bounded `doctor` reports; no sliver gets capture rings then."""
        for bound in (
            lambda: capture_rings.install(self._config.node.run_dir, self._config.limits.capture_rings.bytes),
            fragments.install,
        ):
            try:
                bound()
            except Failed as error:
                log.warning("%s", error)

    def _note_keys(self, rows: Sequence[pending.SliverRow]) -> None:
        """Of slivers from before keys were noted: what their rows say was put there, for nothing changed it."""
        pool = self._config.node.pool
        for row in rows:
            sliver = row.sliver
            if observe.has_root(self._config, sliver.id) and authorized_keys.read_note(pool, sliver.id) is None:
                authorized_keys.write_note(pool, sliver.id, sliver.ssh_keys, sliver.ssh_keys)

    def hasten(self, slivers: Collection[str]) -> None:
        """End many containers at once; each one's own turn finishes it, and says what is wrong if this did not work."""
        with suppress(SlicemgrError):
            self._hypervisor.begin_kill(slivers)

    def reconcile(self, agent: Agent, rows: Sequence[pending.SliverRow]) -> None:
        """Look at everything; repair what is not as desired, tidy."""
        self._node.announce()
        try:
            host = observe.host(self._config, self._hypervisor)
            self._publisher.heal()
        except SlicemgrError as error:
            log.error("cannot observe the node: %s", error)
            return
        for row in rows:
            sliver = row.sliver
            if self._machines.found is None and sliver.kind is Kind.KVM:
                continue
            if agent.busy(sliver.id) or not self._may_try(sliver.id):
                continue
            steps = plan(sliver, host.sliver(sliver.id))
            if steps and (steps != (Step.KEYS,) or self._may_tell(sliver.id)):
                agent.repair(sliver, self._tried(sliver.id))
        self._pool.collect_groups({names.qgroup(row.sliver.serial) for row in rows})
        self._forget_marks(host)
        if not self._node.raw_slivers.is_set() and not any(agent.busy(row.sliver.id) for row in rows):
            cgroup.collect_empty({names.domain(sliver) for sliver in host.domains})

    def _may_try(self, sliver: str) -> bool:
        return time.monotonic() >= self._trouble.get(sliver, (0.0, 0.0))[0]

    def _may_tell(self, sliver: str) -> bool:
        """A guest without an agent is not asked at every look."""
        now = time.monotonic()
        if now < self._told.get(sliver, 0.0):
            return False
        self._told[sliver] = now + _TELL_AGAIN
        return True

    def _tried(self, sliver: str) -> Callable[[SlicemgrError | None], None]:
        def done(error: SlicemgrError | None) -> None:
            if error is None:
                self._trouble.pop(sliver, None)
                return
            _, wait = self._trouble.get(sliver, (0.0, _FIRST_RETRY))
            self._trouble[sliver] = (time.monotonic() + wait, min(2 * wait, _LONGEST_RETRY))
            log.error("cannot repair %s, next attempt in %.0f s: %s", sliver, wait, error)

        return done

    def _forget_marks(self, host: observe.Host) -> None:
        for sliver, pid in host.settled.items():
            domain = host.domains.get(sliver)
            if domain is None or domain.pid != pid:
                observe.mark(self._config, sliver, pid).unlink(missing_ok=True)


def run(config: Config, store: Store, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Be the node's agent until `stop` is set. Refused if another agent runs on this node."""
    with ExitStack() as stack:
        stack.enter_context(only_one(config.node.run_dir / "agent.lock"))
        journal = stack.enter_context(Journal(store, stop.set))
        node = Node.open(config, store, journal, stop)
        upkeep = Upkeep(node)
        upkeep.begin()
        applier = Applier(config, node.hypervisor, node.pool, node.publisher, journal, node.machines, stop)
        converger = Converger(config, node.hypervisor, applier, stop)
        agent = Agent(config, store, journal, converger, NodeOperations(node).serve, upkeep.hasten, stop)
        node.hypervisor.on_change(agent.changed)
        stack.enter_context(ProcViews(ProcView(config.node.run_dir), node.hypervisor.container_inits))
        stack.enter_context(Consoles(config, store, node.hypervisor))
        stack.enter_context(Captures(config))
        stack.enter_context(Recorder(config, store, Pool(config.node.pool), node.hypervisor.machine_stats))
        ready()
        agent.run(upkeep.reconcile)
        if journal.broke:
            raise Failed("the agent could not write its reports", hint="see the log of the agent, and restart it")


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock that an agent holds while it runs. Refused if one does."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                Code.CONFLICT, f"another agent runs on this node ({path} is locked)", hint="stop the other agent first"
            ) from None
        yield
    finally:
        os.close(descriptor)

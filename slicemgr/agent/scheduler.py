"""Read operations from the store, run each sliver's turns, and decide when an operation has ended.

The rows are read when an operation is started, so that the rest of a long create respects a later delete. Between
operations the node is reconciled at an interval, and slivers that differ from their desired state are repaired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from slicemgr import names
from slicemgr.agent import queries
from slicemgr.agent.comparison_times import ComparisonTimes
from slicemgr.agent.fence import Fence
from slicemgr.agent.image_waits import ImageWaits
from slicemgr.agent.journal import Journal
from slicemgr.agent.plan import Step, phase_after
from slicemgr.agent.plan_execution import PlanExecutor
from slicemgr.agent.reconcile import Reconciler
from slicemgr.agent.worker_threads import Rest, Turns
from slicemgr.config import Config
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.ipc.wake import Listener
from slicemgr.model import Desired, OperationState, Phase, Sliver, SliverType
from slicemgr.store import Store, StoreError, incarnation
from slicemgr.store import pending as work

log = logging.getLogger(__name__)

# Repairs that are not recorded as events: keys are sent repeatedly to a guest that does not accept them.
_NO_EVENT = ((), (Step.KEYS,))
_TICK = 1.0  # seconds between queries for operations when no process wakes the agent
_MOST_CHECKED = 32  # domains that are checked one by one; more cause a comparison of the node


@dataclass(slots=True)
class _Operation:
    """An operation in progress: the slivers that are not done yet, and the errors of those that are.

    elsewhere: the slivers that exist on another node.
    """

    row: work.Operation
    left: set[str]
    elsewhere: frozenset[str] = frozenset()
    errors: dict[str, SlicemgrError] = field(default_factory=dict)
    ended: bool = False  # kept until the rows show the end as well


class Scheduler:
    """The node's scheduler. `run` returns after `stop`; a kill at any moment loses nothing.

    serve: carries out an operation that is not on slivers, and returns its result. waits: None on a node that imports
    its images itself. fence: of a node that has joined a testbed.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        journal: Journal,
        executor: PlanExecutor,
        reconciler: Reconciler,
        serve: Callable[[work.Operation], dict[str, object]],
        stop: threading.Event,
        waits: ImageWaits | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._journal = journal
        self._executor = executor
        self._reconciler = reconciler
        self._serve = serve
        self._stop = stop
        self._waits = waits
        self._fence = fence
        self._lock = threading.Lock()
        self._rows: dict[str, Sliver] = {}
        self._turn_slivers: dict[str, Sliver] = {}  # as the turn in progress was planned; the row may be newer
        self._operations: dict[str, _Operation] = {}
        self._turns = Turns(config.agent.workers)
        self._slow = ThreadPoolExecutor(2, "slow")
        self._changed: set[str] = set()  # slivers whose domains have started or ended
        self._operation_ended = threading.Event()

    def run(self) -> None:
        """Work until `stop`. The node is reconciled at an interval, and a sliver when its domain starts or ends."""
        with ExitStack() as stack:
            listener = stack.enter_context(Listener(self._config.wake_socket, self._config.web.user))
            stack.callback(self._slow.shutdown, wait=False, cancel_futures=True)
            stack.callback(self._turns.shutdown)
            times = ComparisonTimes(self._config.agent.reconcile.total_seconds())
            while not self._stop.is_set():
                self._follow(times)
                try:
                    self._work(times)
                except StoreError as error:  # the database restarts: slivers continue to run, and so does the agent
                    log.error("cannot read the desired state: %s", error)
                    self._stop.wait(_TICK)
                except Exception:
                    log.exception("reconciling the node failed; it is repeated")
                    times.compared()
                    self._stop.wait(_TICK)
                listener.wait(times.left(_TICK))

    def _follow(self, times: ComparisonTimes) -> None:
        """Note what has happened since the last turn of the loop."""
        if self._changed:
            times.domains_changed()
        if self._operation_ended.is_set():
            self._operation_ended.clear()
            times.operation_ended()

    def _work(self, times: ComparisonTimes) -> None:
        """Take new operations, and compare what is due."""
        if self._fence:
            self._fence.step(self._forget_sliver, self._turns.busy)
        self._take()
        if times.check_is_due():
            times.begin_check()
            if self._check_changed():
                times.end_check()
        if times.comparison_is_due():
            self._reconcile()
            times.compared()

    def changed(self, sliver: str) -> None:
        """Check a sliver soon whose domain started or ended; not during work on it, or after its deletion."""
        if not self._turns.busy(sliver) and names.sliver_dir(self._config.node.pool, sliver).exists():
            with self._lock:
                self._changed.add(sliver)

    def _check_changed(self) -> bool:
        """Repair the slivers whose domains have changed; False if that needs a comparison of the whole node."""
        with self._lock:
            changed, self._changed = self._changed, set()
        if len(changed) > _MOST_CHECKED:
            return False
        with self._store.read() as connection:
            slivers = [row.sliver for row in work.slivers(connection, self._config.node.name, changed)]
            held = incarnation.held(connection) is not None
        if held or len(slivers) < len(changed):
            return False
        try:
            for repair in self._reconciler.check(slivers, self._absent_or_busy(slivers)):
                self._repair(repair.sliver)
        except Failed:
            return False
        return True

    def _absent_or_busy(self, slivers: list[Sliver]) -> Callable[[str], bool]:
        """Whether a sliver waits for its image, or work on it is in progress."""
        absent = self._waits.absent(slivers) if self._waits else set()
        return lambda one: one in absent or self._turns.busy(one)

    def _reconcile(self) -> None:
        """Compare the host with the rows, and repair slivers without an operation."""
        with self._store.read() as connection:
            slivers = [row.sliver for row in work.slivers(connection, self._config.node.name)]
            held = incarnation.held(connection) is not None
        if held:
            self._reconciler.report(slivers)
            return
        found = self._reconciler.compare(slivers, self._absent_or_busy(slivers))
        if found is None:
            return
        for repair in found.repairs:
            self._repair(repair.sliver)
        self._reconciler.tidy(found.host, slivers, self._turns.busy)

    def _repair(self, sliver: Sliver) -> None:
        """Add a repair. Its turn plans again, because the state may have changed before a worker is free."""
        with self._lock:
            self._rows[sliver.id] = sliver
        self._turns.add(
            sliver.id,
            lambda: self._turn(sliver.id, None),
            lambda error: self._reconciler.repaired(sliver.id, self._ended(sliver.id, error)),
        )

    # operations

    def _take(self) -> None:
        node = self._config.node.name
        with self._store.read() as connection:
            pending = work.pending_ids(connection, node)
            new = pending.difference(self._operations)
            fresh = work.pending_operations(connection, node, new) if new else []
            if fresh and incarnation.held(connection) is not None:
                fresh = [row for row in fresh if row.kind in incarnation.ALLOWED]
            concerned = {sliver for row in fresh for sliver in row.slivers}
            rows = {row.sliver.id: row.sliver for row in work.slivers(connection, node, concerned)} if concerned else {}
            missing = concerned - set(rows)
            elsewhere = work.elsewhere(connection, node, missing) if missing else set()
        self._forget(pending)
        if self._waits:
            fresh = [row for row in fresh if not self._waits.holds_back(row, rows)]
            self._waits.forget(pending)
        with self._lock:
            for sliver in missing:
                self._rows.pop(sliver, None)
            self._rows.update(rows)
        to_delete = {sliver for row in fresh if row.kind == "delete" for sliver in row.slivers if sliver in rows}
        containers = (sliver for sliver in to_delete if rows[sliver].type is SliverType.LXC)
        idle = [sliver for sliver in containers if not self._turns.busy(sliver)]
        for row in fresh:
            self._start(row, elsewhere)
        if idle:
            self._executor.begin_kill(idle)

    def _forget(self, pending: set[str]) -> None:
        for operation in [one for one in self._operations.values() if one.ended and one.row.id not in pending]:
            del self._operations[operation.row.id]

    def _forget_sliver(self, sliver: str) -> None:
        with self._lock:
            self._rows.pop(sliver, None)

    def _start(self, row: work.Operation, elsewhere: set[str]) -> None:
        operation = _Operation(row, set(row.slivers), frozenset(elsewhere.intersection(row.slivers)))
        self._operations[row.id] = operation
        self._journal.add(work.OperationStarted(row.id))
        if row.kind not in work.SLIVER_OPERATIONS:
            self._slow.submit(self._serve, row).add_done_callback(lambda done: self._served(operation, done))
        elif not row.slivers:
            operation.errors[""] = Refused(Code.CONFLICT, f"no sliver of it is on node {self._config.node.name}")
            self._finish(operation)
        for sliver in row.slivers:
            self._turns.add(
                sliver,
                lambda sliver=sliver: self._turn(sliver, operation),  # type: ignore[misc]
                lambda error, sliver=sliver: self._sliver_done(operation, sliver, error),  # type: ignore[misc]
            )

    def _served(self, operation: _Operation, done: Future[dict[str, object]]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            operation.errors[""] = _explain(error)
        self._finish(operation, result=None if error else done.result())

    def _sliver_done(self, operation: _Operation, sliver: str, error: BaseException | None) -> None:
        with self._lock:
            row = self._rows.get(sliver)
        kind = operation.row.kind
        explained = self._ended(sliver, error) or (
            _missing(kind, sliver in operation.elsewhere) if row is None else _superseded(kind, row)
        )
        state = OperationState.DONE if explained is None else OperationState.FAILED
        done = work.SliverDone(operation.row.id, sliver, state)
        with self._lock:
            if explained is not None:
                operation.errors[sliver] = explained
            operation.left.discard(sliver)
            last = not operation.left
            if not last:
                self._journal.add(done)
        if last:
            self._finish(operation, done)

    def _finish(self, operation: _Operation, *before: work.Update, result: dict[str, object] | None = None) -> None:
        """before: updates for the same report, since the next one to a centre waits until this one is applied."""
        state, message, hint = OperationState.DONE, "", ""
        if operation.errors:
            state = OperationState.FAILED
            first = min(operation.errors)
            error = operation.errors[first]
            message, hint = f"{error.field}: {error.message}" if error.field else error.message, error.hint
            if len(operation.row.slivers) > 1:
                message = f"{len(operation.errors)} of {len(operation.row.slivers)} slivers: {first}: {message}"
            if operation.row.kind == "snapshot":  # atomic: slivers that have made the snapshot discard it
                before = (*before, work.SnapshotGone(str(operation.row.params["snapshot"])))
        self._journal.add(*before, work.OperationEnded(operation.row.id, state, message, hint, result))
        operation.ended = True
        self._operation_ended.set()

    # one sliver's turn

    def _turn(self, sliver_id: str, operation: _Operation | None) -> Rest | None:
        with self._lock:
            sliver = self._rows.get(sliver_id)
        if sliver is None:
            return None
        if self._held(refuse=operation is not None):
            return None
        with self._lock:
            self._turn_slivers[sliver_id] = sliver
        steps = self._executor.steps(sliver)
        if operation is None and steps not in _NO_EVENT:
            detail = f"{sliver.id}: {', '.join(steps)}"
            self._journal.add(work.EventSeen("agent", "repair", sliver.slice_name, detail, sliver.project))
        return self._executor.carry_out(
            sliver, steps, self._reporter(operation, sliver_id), lambda: self._unwanted(sliver)
        )

    def _held(self, refuse: bool) -> bool:
        """Whether the node is on hold; asked for each turn, which may have waited since its row was read.

        refuse: raise Refused during the hold. Raises StoreError if the agent stops before the database answers.
        """

        def ask(connection: Connection) -> bool:
            if refuse:
                incarnation.refuse_during_hold(connection, "change slivers")
                return False
            return incarnation.held(connection) is not None

        return queries.awaited(self._store, self._stop, ask)

    def _unwanted(self, sliver: Sliver) -> bool:
        """Whether a later request has changed the desired state since the turn was planned."""
        with self._lock:
            row = self._rows.get(sliver.id)
        return row is None or row.desired is not sliver.desired

    def _reporter(self, operation: _Operation | None, sliver: str) -> Callable[[Step, OperationState, str], None]:
        def report(step: Step, state: OperationState, detail: str) -> None:
            if operation is not None:
                self._journal.add(work.StepSeen(operation.row.id, sliver, step.value, state, detail))

        return report

    def _ended(self, sliver_id: str, error: BaseException | None) -> SlicemgrError | None:
        """Record the outcome of a sliver's turn; its error in the form for users."""
        with self._lock:
            sliver = self._turn_slivers.pop(sliver_id, None)
        if error is not None:
            explained = _explain(error)
            self._journal.add(work.SliverSeen(sliver_id, Phase.FAILED, str(explained)))
            return explained
        if sliver is None:
            return None
        if sliver.desired is Desired.ABSENT:
            self._journal.add(work.SliverGone(sliver_id))
            with self._lock:
                self._rows.pop(sliver_id, None)
        else:
            self._journal.add(work.SliverSeen(sliver_id, phase_after(sliver.desired), ""))
        return None


def _missing(kind: str, elsewhere: bool) -> SlicemgrError | None:
    """The error of an operation on a sliver that is not this node's; None if the operation has deleted the sliver."""
    if elsewhere:
        return Refused(Code.CONFLICT, "the sliver is on another node")
    if work.SLIVER_OPERATIONS[kind] is Desired.ABSENT:
        return None
    return Refused(Code.CONFLICT, "the sliver was deleted")


def _superseded(kind: str, sliver: Sliver) -> SlicemgrError | None:
    """The error of an operation that failed only because a later request changed the desired state."""
    wanted = work.SLIVER_OPERATIONS[kind]
    if wanted is None or sliver.desired is wanted:
        return None
    return Refused(Code.CONFLICT, f"a later request changed the desired state of the sliver to {sliver.desired}")


def _explain(error: BaseException) -> SlicemgrError:
    if isinstance(error, SlicemgrError):
        return error
    log.error("unexpected error in a worker", exc_info=error)
    return Failed(
        f"unexpected {type(error).__name__}: {error}", hint="the log of the agent has the details", code=Code.FAILED
    )

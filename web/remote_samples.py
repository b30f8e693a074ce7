"""Samples of other hosts, which stay there: the service asks each host that a request needs, all at the same time."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from slicemgr.errors import Code, SlicemgrError
from slicemgr.policy import node_answers
from slicemgr.policy.node_answers import BadAnswer
from slicemgr.service.views import remote_samples
from slicemgr.service.views.remote_samples import Asked, Found

log = logging.getLogger(__name__)

_AT_ONCE = 8  # hosts that are asked at the same time
_PAUSE = 10.0  # seconds for which a host is not asked after it has not answered
_CURRENT = 5.0  # seconds for which the last samples are kept

Ask = Callable[[str, bytes], bytes]  # a node and a question; its answer


@dataclass(eq=False)
class _Kept:
    """One answer. lock: held while the host is asked, so that others wait for the same answer."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = -math.inf
    slivers: frozenset[int] | None = None
    found: Found | None = None


class RemoteSamples:
    """Thread-safe. ask: as Dials.ask."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="samples")
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._failed: dict[str, float] = {}  # nodes that have not answered, and when

    def ask(self, asked: Iterable[Asked]) -> Mapping[str, Found | None]:
        """The samples of each node; None: it did not answer in time, or with something else."""
        wanted = list(asked)
        return dict(zip((one.node for one in wanted), self._pool.map(self._one, wanted), strict=True))

    def _one(self, asked: Asked) -> Found | None:
        if asked.question["kind"] != "newest":
            return self._fetch(asked)
        with self._lock:
            kept = self._kept.setdefault(asked.node, _Kept())
        with kept.lock:
            if time.monotonic() - kept.at > _CURRENT or kept.slivers != asked.slivers:
                kept.found, kept.slivers, kept.at = self._fetch(asked), asked.slivers, time.monotonic()
            return kept.found

    def _fetch(self, asked: Asked) -> Found | None:
        if time.monotonic() - self._failed.get(asked.node, -math.inf) < _PAUSE:
            return None
        try:
            question = {**asked.question, "now": int(time.time())}  # the clock of the node may differ
            tables = node_answers.tables(self._ask(asked.node, json.dumps(question).encode()))
            return remote_samples.checked(tables, asked)
        except (SlicemgrError, BadAnswer) as error:
            log.warning("no samples of node %s: %s", asked.node, error)
            if not isinstance(error, SlicemgrError) or error.code is Code.UNAVAILABLE:
                self._failed[asked.node] = time.monotonic()
            return None

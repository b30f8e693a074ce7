"""Counts of requests and connections that were refused by a limit, by reason. For `/metrics`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

# The reasons are an interface and do not change.
REASONS = (
    "header_time",  # the header did not arrive in `web.header_time`
    "body_time",  # the body arrived too slowly
    "connections",  # closed in favour of others
    "connections_per_address",
    "buffers",
    "uploads",
    "uploads_per_user",
    "streams",  # no thread for another console, followed operation or waiting request
    "streams_per_user",
    "sign_in",  # a sign-in attempt that came too early after failures
)


class Refusals(Collector):
    """Thread-safe; counts since the service started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        if reason not in REASONS:
            raise ValueError(reason)
        with self._lock:
            self._counts[reason] += 1

    def count(self, reason: str) -> int:
        with self._lock:
            return self._counts[reason]

    def collect(self) -> Iterable[Metric]:
        text = "What the web service refused because there was too much of it."
        family = CounterMetricFamily("slicemgr_web_refusals", text, labels=("reason",))
        for reason in REASONS:
            family.add_metric([reason], self.count(reason))
        yield family

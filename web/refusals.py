"""How often the service refused something because there was too much of it, by reason. For `/metrics`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

# The reasons are an interface: they stay.
REASONS = (
    "header_time",  # a header that did not arrive in `web.header_time`
    "body_time",  # a body that came too slowly
    "connections",  # closed to make room
    "connections_per_address",
    "buffers",
    "uploads",
    "uploads_per_user",
    "streams",  # no thread for another console, followed operation or waiting request
    "streams_per_user",
    "sign_in",  # an attempt that came too early after failures
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

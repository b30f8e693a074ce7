"""The bytes of disk images that the service has sent to nodes. For `/metrics`."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class ImageTraffic(Collector):
    """Thread-safe; counts since the service started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = 0

    def add(self, sent: int) -> None:
        with self._lock:
            self._sent += sent

    def collect(self) -> Iterable[Metric]:
        text = "Bytes of disk images that the service has sent to nodes."
        with self._lock:
            yield CounterMetricFamily("slicemgr_web_image_bytes", text, value=self._sent)

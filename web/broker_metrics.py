"""The state of the broker, as the hub left it on this machine. For `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slicemgr.ipc import broker_state

_SIZES = (
    ("memory_bytes", "memory", "Memory that the broker uses."),
    ("memory_limit_bytes", "memory_limit", "Memory beyond which the broker takes no messages."),
    ("disk_free_bytes", "disk_free", "Bytes of disk available to the broker."),
    ("disk_limit_bytes", "disk_limit", "Bytes of disk below which the broker takes no messages."),
)


class BrokerMetrics(Collector):
    """Without values where no hub works."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def collect(self) -> Iterable[Metric]:
        state = broker_state.read(self._file)
        text = "Whether the broker takes no messages because it lacks a resource."
        alarms = GaugeMetricFamily("slicemgr_broker_alarm", text, labels=("resource",))
        for resource in (broker_state.MEMORY, broker_state.DISK) if state else ():
            alarms.add_metric((resource,), float(state is not None and resource in state.alarms))
        yield alarms
        outdated = "Settings of the broker that an earlier version wrote and this one would not."
        for name, column, what in (("outdated_settings", "outdated", outdated), *_SIZES):
            family = GaugeMetricFamily(f"slicemgr_broker_{name}", what)
            if state is not None:
                value = getattr(state, column)
                family.add_metric((), len(value) if column == "outdated" else value)
            yield family

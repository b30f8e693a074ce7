"""Lists the tests that cost the most CPU time: `pytest --cpu 40`."""

from __future__ import annotations

import resource
from collections.abc import Generator
from dataclasses import dataclass

import pytest
from suite import busy


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds. own: of pytest and of awaited processes. machine: of the whole host, so with daemons, too."""

    own: float
    machine: float

    @classmethod
    def until_now(cls) -> Cost:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(sum(one.ru_utime + one.ru_stime for one in used), busy())

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.own - other.own, self.machine - other.machine)


class CpuTimes:
    """A plugin. A fixture that several tests share counts for the first of them. count: of listed phases of tests."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._costs: list[tuple[Cost, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        return (yield from self._measured("setup", item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        return (yield from self._measured("call", item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        return (yield from self._measured("teardown", item))

    def _measured(self, phase: str, item: pytest.Item) -> Generator[None, None, None]:
        before = Cost.until_now()
        try:
            return (yield)
        finally:
            self._costs.append((Cost.until_now() - before, f"{phase:8} {item.nodeid}"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds of tests: own, machine")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """A line for each of the most expensive phases, and a last line with the sum of all."""
        dear = sorted(self._costs, key=lambda one: -max(one[0].own, one[0].machine))[: self._count]
        whole = Cost(sum(one.own for one, _ in self._costs), sum(one.machine for one, _ in self._costs))
        return [f"{one.own:8.2f} {one.machine:8.2f} {name}" for one, name in (*dear, (whole, "all tests"))]

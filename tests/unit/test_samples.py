"""Samples in the store: written, summed up, forgotten, charged to projects; over both databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import Service
from sqlalchemy.engine import Connection, Row

from slicemgr.config import RecordConfig
from slicemgr.figures import COUNTED, HOURS, MINUTES, RAW
from slicemgr.store import samples

pytestmark = pytest.mark.usefixtures("each_store")

START = 1_795_000_200  # a multiple of 300 and, less 600, of 3600
START -= START % 3600
NODE = "node1"
MIB = 1 << 20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        made.create(count=2)
        yield made


def part(at: int, serial: int, **values: Any) -> dict[str, Any]:
    gauges = ("charged", "working", "guest", "swap", "charged_peak", "disk", "referenced", "pids", "connections")
    row: dict[str, Any] = {"node": NODE, "resolution": RAW, "at": at, "sliver": serial}
    row |= {"seconds": 30.0, "running": 30.0, "cpu": 0.0, "cpu_peak": 0.0}
    return {**row, **dict.fromkeys(gauges), **dict.fromkeys(COUNTED, 0), **values}


def whole(at: int, **values: Any) -> dict[str, Any]:
    row = {"node": NODE, "resolution": RAW, "at": at, "seconds": 30.0, "memory": 100, "memory_total": 200, "lxc": 2}
    return {**row, **values}


def fill(service: Service, count: int, first: int = START, **values: Any) -> None:
    """A sample of both slivers every 30 s; the first at `first` + 30."""
    with service.store.write() as c:
        known = samples.slivers(c, NODE)
        for number in range(1, count + 1):
            at = first + 30 * number
            parts = [part(at, one.serial, **{"charged": 10 * MIB, "disk": MIB, **values}) for one in known]
            samples.write(c, whole(at), parts, {one.serial: one.project for one in known})


def rows(service: Service, resolution: int) -> list[Any]:
    """The rows of this resolution only."""
    with service.store.read() as c:
        serials = [one.serial for one in samples.slivers(c, NODE)]
        found = samples.of_slivers(c, serials, resolution, 0, 1 << 40)
    return [row for row in found if row.resolution == resolution]


def sum_all(service: Service, now: int) -> None:
    for _ in range(100):
        with service.store.write() as c:
            if not samples.sum_up(c, NODE, now):
                return
    raise AssertionError("summing up does not end")


def test_what_is_written_is_read(service: Service) -> None:
    fill(service, 3, net_in=5)
    found = rows(service, RAW)
    assert [row.at - START for row in found] == [30, 30, 60, 60, 90, 90]
    assert {(row.charged, row.net_in, row.seconds) for row in found} == {(10 * MIB, 5, 30.0)}


def test_a_second_look_in_the_same_second_adds_nothing(service: Service) -> None:
    fill(service, 2, net_in=5)
    before = service.dump()
    fill(service, 2, net_in=5)
    assert service.dump() == before


def test_five_minutes_and_hours_are_sums_means_and_maxima(service: Service) -> None:
    fill(service, 60, net_in=7, cpu=3.0, cpu_peak=0.1)
    fill(service, 60, START + 1800, net_in=1, cpu=6.0, cpu_peak=0.2, charged=20 * MIB, charged_peak=30 * MIB)
    sum_all(service, START + 3600)
    minutes, hours = rows(service, MINUTES), rows(service, HOURS)
    assert len(minutes) == 2 * 12 and len(hours) == 2
    assert minutes[0].at == START + 300, "a row's time is the end of its span"
    assert (minutes[0].net_in, minutes[0].seconds, minutes[0].cpu) == (70, 300.0, pytest.approx(30.0))
    assert (hours[0].net_in, hours[0].running) == (60 * 7 + 60, 3600.0)
    assert hours[0].charged == 15 * MIB and hours[0].charged_peak == 30 * MIB and hours[0].cpu_peak == 0.2
    assert hours[0].guest is None, "what was never known is not known"
    with service.store.read() as c:
        node = samples.of_node(c, NODE, HOURS, 0, 1 << 40)[0]
    assert (node.seconds, node.memory, node.lxc) == (3600.0, 100, 2)


def test_what_ran_longer_weighs_more(service: Service) -> None:
    fill(service, 1, running=10.0, charged=40)
    fill(service, 9, START + 30, running=30.0, charged=10)
    sum_all(service, START + 300)
    assert rows(service, MINUTES)[0].charged == round((10 * 40 + 270 * 10) / 280)


def test_a_span_is_summed_up_once_and_only_when_it_is_over(service: Service) -> None:
    fill(service, 19)
    sum_all(service, START + 599)
    assert len(rows(service, MINUTES)) == 2
    fill(service, 1, START + 570)
    sum_all(service, START + 600)
    before = rows(service, MINUTES)
    sum_all(service, START + 600)
    assert rows(service, MINUTES) == before and len(before) == 4
    assert [row.seconds for row in before] == [300.0] * 4


def test_after_months_without_a_sample_it_goes_on_at_once(service: Service) -> None:
    fill(service, 10)
    sum_all(service, START + 300)
    later = START + 3600 * 24 * 200
    fill(service, 10, later)
    with service.store.write() as c:
        more = [samples.sum_up(c, NODE, later + 300) for _ in range(3)]
    assert more[-1] is False, "months without rows are not gone through"
    assert [row.at for row in rows(service, MINUTES)][::2] == [START + 300, later + 300]


def test_old_rows_are_forgotten_and_their_sums_stay(service: Service) -> None:
    fill(service, 240)
    sum_all(service, START + 7200)
    record = replace(RecordConfig(), keep=timedelta(hours=1), keep_5m=timedelta(hours=100))
    with service.store.write() as c:
        samples.forget(c, NODE, record, START + 7200)
    assert min(row.at for row in rows(service, RAW)) > START + 3600
    assert len(rows(service, MINUTES)) == 48 and len(rows(service, HOURS)) == 4


def test_rows_of_a_clock_that_was_ahead_go_and_stop_nothing(service: Service) -> None:
    ahead = START + 3600 * 24 * 3650
    fill(service, 10, ahead)
    sum_all(service, ahead + 300)
    fill(service, 10)
    with service.store.write() as c:
        samples.forget(c, NODE, RecordConfig(), START + 300)
    sum_all(service, START + 300)
    assert [row.at for row in rows(service, MINUTES)] == [START + 300] * 2
    assert max(row.at for row in rows(service, RAW)) == START + 300


def accounts(
    c: Connection, projects: list[str] | None = None, months: tuple[str, str] = ("", "9999")
) -> Sequence[Row[*tuple[Any, ...]]]:
    return c.execute(samples.accounts(projects, months)).all()


def test_projects_are_charged_by_month(service: Service) -> None:
    fill(service, 120, cpu=15.0, net_out=1000, charged=512 * MIB, disk=1024 * MIB)
    with service.store.read() as c:
        (account,) = accounts(c)
    assert (account.project, account.month) == ("default", "2026-11")
    assert account.sliver_hours == pytest.approx(2.0)
    assert account.cpu_hours == pytest.approx(1.0)
    assert account.memory_gib_hours == pytest.approx(1.0)
    assert account.disk_gib_hours == pytest.approx(2.0)
    assert account.net_out == 2 * 120 * 1000


def test_a_month_ends_at_its_end(service: Service) -> None:
    december = 1_796_083_200  # 2026-12-01T00:00:00Z
    fill(service, 4, december - 60, net_in=1)
    with service.store.read() as c:
        found = {row.month: row.net_in for row in accounts(c)}
        assert accounts(c, ["nobody"]) == []
        assert [row.month for row in accounts(c, None, ("2026-12", "2026-12"))] == ["2026-12"]
    assert found == {"2026-11": 2, "2026-12": 6}


def test_a_deleted_sliver_leaves_samples_that_fade_and_its_account(service: Service) -> None:
    from slicemgr.store import pending

    fill(service, 2)
    service.record(*(pending.SliverGone(row.sliver.id) for row in service.rows()))
    assert rows(service, RAW) == [] and service.count("samples") == 4
    with service.store.read() as c:
        assert len(accounts(c)) == 1


def test_what_is_not_summed_up_yet_comes_as_it_is(service: Service) -> None:
    """An hour, two times five minutes and four samples: each second once, whichever resolution is asked for."""
    fill(service, 144, net_in=1)
    sum_all(service, START + 144 * 30)
    with service.store.read() as c:
        (serial, *_) = [one.serial for one in samples.slivers(c, NODE)]
        found = samples.of_slivers(c, [serial], HOURS, 0, 1 << 40)
        nodes = samples.of_node(c, NODE, HOURS, 0, 1 << 40)
    assert [row.resolution for row in found] == [HOURS, MINUTES, MINUTES, *[RAW] * 4]
    assert sum(row.net_in for row in found) == 144 and sum(row.seconds for row in nodes) == 144 * 30.0

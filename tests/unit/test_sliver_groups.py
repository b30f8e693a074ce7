"""Which groups of slivers are read, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from bare_service import Service

from slicemgr.agent.chores import sliver_groups
from slicemgr.agent.chores.sliver_groups import SliverGroups
from slicemgr.drivers.kernel import counters, memory_groups
from slicemgr.drivers.kernel.memory_groups import Held
from slicemgr.store import tables as t

MANY = 100


class Setting:
    """Groups of many slivers, of which each holds as many bytes as its number. reads: how often each was read."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids, self.reads, self.held = [f"exp-{number}" for number in range(MANY)], Counter[str](), dict[str, int]()
        for number, id_ in enumerate(self.ids):
            service.create(f"exp{number}")
            self.held[id_] = number
        with service.store.write() as c:
            slivers = list(c.scalars(t.slivers.select().with_only_columns(t.slivers.c.serial)))
            for serial, id_ in zip(slivers, self.ids, strict=True):
                values = {"id": id_, "node": service.config.node.name}
                c.execute(t.slivers.update().where(t.slivers.c.serial == serial).values(**values))
        monkeypatch.setattr(counters, "running", lambda: dict.fromkeys(self.held, 7))
        monkeypatch.setattr(memory_groups, "group", lambda sliver, pid: Path(f"/{sliver}"))
        monkeypatch.setattr(memory_groups, "held", self._held)
        self.groups = SliverGroups(service.config, service.store)

    def _held(self, group: Path, version: str, *, swap: bool) -> Held | None:
        self.reads[group.name] += 1
        bytes_ = self.held.get(group.name)
        return None if bytes_ is None else Held(bytes_, 0, 0, bytes_)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    with Service(tmp_path) as service:
        yield Setting(service, monkeypatch)


def charged(setting: Setting, now: float, *, quick: bool = True, always: Collection[str] = ()) -> dict[str, int]:
    found = setting.groups.read(now, swap=False, quick=quick, always=always)
    assert found is not None
    return {name: one.held.charged for name, one in found.items()}


def test_in_a_hurry_the_largest_are_read_each_time_and_all_in_turn(setting: Setting) -> None:
    assert charged(setting, 0.0) == setting.held, "all at first"
    setting.reads.clear()
    for now in range(1, 11):
        assert charged(setting, now / 4) == setting.held
    assert setting.reads["exp-99"] == 10 and setting.reads["exp-84"] == 10
    assert set(setting.reads) == set(setting.ids), "each once"
    assert setting.reads["exp-0"] == 1 and setting.reads.total() < 10 * 27
    charged(setting, 2.75, quick=False)
    assert setting.reads["exp-0"] == 2, "with time, all are read"


def test_throttled_slivers_are_read_each_time(setting: Setting) -> None:
    """Only then is it known that they wait, and they can exchange some of their memory."""
    charged(setting, 0.0)
    setting.reads.clear()
    for now in range(1, 11):
        charged(setting, now / 4, always={"exp-0"})
    assert (setting.reads["exp-0"], setting.reads["exp-1"]) == (10, 1)


def test_a_sliver_that_grows_is_found_and_then_read_each_time(setting: Setting) -> None:
    charged(setting, 0.0)
    setting.held["exp-3"] = 5000
    seen = [charged(setting, now / 4)["exp-3"] for now in range(1, 11)]
    assert seen[-1] == 5000
    setting.held["exp-3"] = 6000
    assert charged(setting, 2.75)["exp-3"] == 6000


def test_a_sliver_that_ends_is_left_out_and_a_new_one_is_found(setting: Setting) -> None:
    del setting.held["exp-99"], setting.held["exp-0"]
    kept = setting.held.pop("exp-50")
    charged(setting, 0.0)
    setting.held["exp-50"] = kept
    del setting.held["exp-98"]
    assert "exp-98" not in charged(setting, 0.25), "at once if it is large"
    for now in range(2, 14):
        found = charged(setting, now / 4)
    assert found == setting.held


def test_after_a_rest_all_are_read(setting: Setting) -> None:
    charged(setting, 0.0)
    setting.held = {name: bytes_ + 7 for name, bytes_ in setting.held.items()}
    assert charged(setting, 60.0) == setting.held


def test_a_sliver_that_has_started_again_is_read(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    charged(setting, 0.0)
    setting.held["exp-0"] = 7
    monkeypatch.setattr(counters, "running", lambda: {**dict.fromkeys(setting.held, 7), "exp-0": 8})
    setting.groups._turn = 0
    setting.groups._members_at = -1000.0
    assert charged(setting, 0.25)["exp-0"] == 7


def test_few_are_always_read(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliver_groups, "FEW", MANY)
    for now in range(4):
        charged(setting, now / 4)
    assert set(setting.reads.values()) == {4}

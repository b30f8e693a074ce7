"""A conversion has all of its steps or none, also if its process is killed; the control is an undo that is missing."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slicemgr.certificates import private_files
from slicemgr.config import Config, NodeConfig
from slicemgr.conversion import conversion as conversions
from slicemgr.conversion import kept_files
from slicemgr.conversion.conversion import Conversion, Step
from slicemgr.conversion.units import Units
from slicemgr.errors import Failed, Refused

NAMES = ("first", "second", "settings", "last")
BEFORE = '# mine\n[node]\nname = "n"\n'


class World:
    """A folder with a file for each step that was done, and settings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.settings = folder / "slicemgr.toml"
        self.settings.write_text(BEFORE)
        self.settings.chmod(0o644)
        (folder / "state").mkdir()

    def conversion(self) -> Conversion:
        config = Config(node=NodeConfig(state_dir=self.folder / "state"))
        url, broker = "postgresql://u:secret@/d", "testbed.example:5671"
        return Conversion(config, self.settings, url, broker, "0.0.0.0", Units("/bin/false"))

    def step(self, name: str) -> Step:
        file = self.folder / name

        def undo(conversion: Conversion) -> None:
            assert conversion.facts[name] == {"existed": False}
            file.unlink(missing_ok=True)

        return Step(name, name, lambda _: file.touch(), undo, lambda _: {"existed": file.exists()})

    def steps(self) -> list[Step]:
        return [self._settings() if name == "settings" else self.step(name) for name in NAMES]

    def _settings(self) -> Step:
        def do(conversion: Conversion) -> None:
            private_files.replace(conversion.settings, conversion.changed(), os.getuid(), os.getgid(), 0o640)

        return Step(
            "settings",
            "settings",
            do,
            lambda conversion: kept_files.put_back(conversion.settings, conversion.facts["settings"]["file"]),
            lambda conversion: {"file": kept_files.keep(conversion.settings)},
            lasting=True,
        )

    def state(self) -> tuple[set[str], str, int]:
        """The steps that are done, and the settings with their mode."""
        done = {name for name in NAMES if (self.folder / name).exists()}
        return done, self.settings.read_text(), stat.S_IMODE(self.settings.stat().st_mode)

    def run(self, steps: list[Step]) -> None:
        conversions.run(self.conversion(), steps, self.said.append)

    def killed_in(self, steps: list[Step]) -> None:
        """Run the steps in a process that kills itself in one of them."""
        process = multiprocessing.get_context("fork").Process(target=lambda: self.run(steps))
        process.start()
        process.join()
        assert process.exitcode == -9


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def fail() -> None:
    raise Failed("the disk is full", hint="make room")


def at(steps: list[Step], name: str, action: Callable[[], None], *, after: bool) -> list[Step]:
    """The steps, with an action before or after one of them."""

    def do(step: Step) -> Callable[[Conversion], None]:
        def changed(conversion: Conversion) -> None:
            if after:
                step.do(conversion)
            action()

        return changed

    return [replace(step, do=do(step)) if step.name == name else step for step in steps]


UNTOUCHED = (set[str](), BEFORE, 0o644)


def test_all_steps_are_done(world: World) -> None:
    world.run(world.steps())
    done, text, mode = world.state()
    assert done == {"first", "second", "last"} and mode == 0o640
    assert text.startswith(BEFORE) and "secret" in text and "testbed.example:5671" in text
    assert not world.conversion().record.exists()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_failure_of_any_step_leaves_nothing(world: World, name: str, after: bool) -> None:
    with pytest.raises(Failed, match="the disk is full") as caught:
        world.run(at(world.steps(), name, fail, after=after))
    assert "make room" in caught.value.hint and "works as before" in caught.value.hint
    assert world.state() == UNTOUCHED and not world.conversion().record.exists()


@pytest.mark.parametrize("name", NAMES)
def test_without_an_undo_something_remains(world: World, name: str) -> None:
    """The control of the test above."""
    steps = [replace(step, undo=lambda _: None) if step.name == name else step for step in world.steps()]
    with pytest.raises(Failed):
        world.run(at(steps, name, fail, after=True))
    assert world.state() != UNTOUCHED


def test_a_signal_undoes_all(world: World) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(Failed, match="interrupted"):
        world.run(at(world.steps(), "second", interrupt, after=True))
    assert world.state() == UNTOUCHED


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["first", "second"])
def test_what_a_killed_process_has_begun_is_undone_by_another(world: World, name: str, after: bool) -> None:
    world.killed_in(at(world.steps(), name, lambda: os.kill(os.getpid(), 9), after=after))
    record = world.conversion().record
    assert stat.S_IMODE(record.stat().st_mode) == 0o600, "it has the password of the database"
    later = world.conversion()
    later.target = later.broker = ""
    conversions.undo(later, world.steps(), world.said.append)
    assert world.state() == UNTOUCHED and not record.exists()
    with pytest.raises(Refused, match="no conversion was interrupted"):
        conversions.undo(world.conversion(), world.steps(), world.said.append)


@pytest.mark.parametrize("name", ["settings", "last"])
def test_a_process_that_was_killed_later_leaves_a_centre(world: World, name: str) -> None:
    """Its units start at the next boot; an undo would lose what users have changed since."""
    world.killed_in(at(world.steps(), name, lambda: os.kill(os.getpid(), 9), after=True))
    before = world.state()
    with pytest.raises(Refused):
        conversions.undo(world.conversion(), world.steps(), world.said.append)
    assert world.state() == before and "testbed.example:5671" in before[1]
    assert not world.conversion().record.exists()


def test_a_step_that_cannot_be_undone_leaves_a_record_and_does_not_keep_others(world: World) -> None:
    broken = [True]

    def undo(step: Step) -> Callable[[Conversion], None]:
        def tried(conversion: Conversion) -> None:
            if broken:
                raise OSError("no such device")
            step.undo(conversion)

        return tried

    steps = [replace(step, undo=undo(step)) if step.name == "second" else step for step in world.steps()]
    with pytest.raises(Failed, match="second: no such device"):
        world.run(at(steps, "last", fail, after=True))
    assert world.state() == ({"second"}, BEFORE, 0o644)
    broken.clear()
    conversions.undo(world.conversion(), steps, world.said.append)
    assert world.state() == UNTOUCHED

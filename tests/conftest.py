"""Options and fixtures of the whole suite."""

from __future__ import annotations

import functools
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import argon2
import plain_plots
import pytest
import suite
from bare_service import databases_on
from cpu_times import CpuTimes
from guest import Guest, booted
from host_node import PRODUCTION, HostNode
from hypothesis import HealthCheck, settings
from joined_node import JoinedNode
from postgres_server import Server
from production_run import SUITES, Runs, chosen_machines
from testbed import IMAGE, Node, ensure_image

from slicemgr.service.accounts import passwords

if TYPE_CHECKING:
    from tenants import Tenants

GOLDEN = Path(__file__).parent / "golden"
SOME = 30  # examples of a test that has no number of its own, where tests marked `long` are left out
collect_ignore = [] if PRODUCTION else ["production"]

# The load of the host must not fail a test.
settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("some", settings.get_profile("all"), max_examples=SOME)
settings.load_profile("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="rewrite the golden files; review the diff")
    parser.addoption("--part", choices=suite.PARTS, help="of the suite: see tools/suite.py")
    parser.addoption("--taken", type=Path, help="a folder in which parts with nodes mark the files that they take")
    parser.addoption("--cpu", type=int, metavar="N", help="list the N phases of tests that cost the most CPU time")
    parser.addoption(
        "--nodes-venv", type=Path, help="run the tests of a node with one that has joined: see tests/joined_node.py"
    )
    parser.addoption(
        "--debian", choices=tuple(SUITES), help="of the production-like host; default: each, one after the other"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (count := config.getoption("--cpu")) is not None:
        config.pluginmanager.register(CpuTimes(count))
    if config.getoption("markexpr") == suite.NOT_LONG:
        settings.load_profile("some")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a golden file, given by its path below tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regenerate"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name} differs; if that is meant: pytest tests/golden --regenerate"

    return compare


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Lets programs that tests start end at SIGINT: a shell starts processes in the background without it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cheap_hashes() -> Iterator[None]:
    """Makes password hashes cheap in tests that do not concern them: a real one takes 0.25 s of CPU time."""
    cheap = functools.partial(argon2.PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "PasswordHasher", cheap)
        yield


@pytest.fixture
def full_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses password hashes as in the service, for tests that concern them."""
    monkeypatch.setattr(passwords, "PasswordHasher", argon2.PasswordHasher)


@pytest.fixture(scope="session", autouse=True)
def cheap_plots() -> Iterator[None]:
    """Makes reports without matplotlib in tests that do not concern their plots."""
    with pytest.MonkeyPatch.context() as patch:
        plain_plots.use(patch.setattr, plain_plots.PLAIN)
        yield


@pytest.fixture
def full_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws plots by matplotlib, for at least one test of each experiment."""
    plain_plots.use(monkeypatch.setattr, plain_plots.REAL)


@pytest.fixture(scope="session")
def kept_tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    """Made once per session: creating an application takes longer than the requests of most tests."""
    from tenants import Tenants  # imports an application, which tests of a node do not need

    with Tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


@pytest.fixture
def tenants(kept_tenants: Tenants) -> Tenants:
    """The tenants in their initial state, for tests that do not change routes or settings of the application."""
    kept_tenants.restore()
    return kept_tenants


@pytest.fixture(scope="session")
def bare_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A box with the service and the imported image of the recipe. It is destroyed at the end in any case.

    Of the two parts of the suite with such a node, the first performs a real import; the second waits for its files.
    """
    if PRODUCTION:
        with HostNode() as host:
            host.start()
            yield host
        return
    ensure_image()
    if (venv := request.config.getoption("--nodes-venv")) is not None:
        with JoinedNode(venv.absolute()) as joined:
            joined.start()
            joined.import_recipe(IMAGE)
            yield joined
        return
    second = request.config.getoption("--part") == suite.NODES[1]
    with Node("test-again" if second else "test") as made:
        made.start()
        made.import_recipe(IMAGE, really=not second)
        yield made


@pytest.fixture(scope="session")
def spare_node() -> Iterator[Node]:
    """Another node, without an image, for tests that import their own."""
    with Node("spare") as made:
        made.start()
        yield made


@pytest.fixture(scope="session")
def second_node(spare_node: Node) -> Node:
    """The spare node with the image of the recipe, which balances the duration of both halves of the suite."""
    spare_node.import_recipe(IMAGE)
    return spare_node


@pytest.fixture(scope="session")
def booted_guest(spare_node: Node) -> Iterator[Guest]:
    """A machine that is booted for the first test that uses it, and runs until the end of the last test."""
    with booted(spare_node) as made:
        yield made


@pytest.fixture
def guest(booted_guest: Guest) -> Iterator[Guest]:
    """The machine that tests share. A test must leave it running without a restart, and the host unchanged."""
    process = booted_guest.qemu()
    yield booted_guest
    assert (booted_guest.qemu(), booted_guest.sliver()["state"]) == (process, "running")
    booted_guest.node.agrees()


@pytest.fixture(scope="session")
def production_runs(bare_node: Node, request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The production-like machines, which run in the background."""
    runs = Runs(bare_node, chosen_machines(request.config, request.session.items))
    yield runs
    runs.stop()


@pytest.fixture(scope="session")
def node(bare_node: Node, request: pytest.FixtureRequest) -> Node:
    """The node that most tests share. The production-like machines run at the same time if their tests are selected."""
    if any("test_production_host" in item.nodeid for item in request.session.items):
        request.getfixturevalue("production_runs")
    return bare_node


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part collects only its own files of the tests that need no node."""
    part = config.getoption("--part")
    owner = _units(config.rootpath).get(collection_path)
    return True if part is not None and owner not in (None, part) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs the tests of the production-like machines last; with --part, only that part, the largest files first."""
    part = config.getoption("--part")
    if part is not None:
        units = _units(config.rootpath)
        parts = [(item, (units[item.path],) if item.path in units else _parts(item)) for item in items]
        config.hook.pytest_deselected(items=[item for item, its in parts if part not in its])
        items[:] = [item for item, its in parts if part in its]
    if part in suite.NODES:
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: -tests[item.path])
    items.sort(key=lambda item: "test_production_host" in item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --taken: a file whose tests both parts with nodes could run is run by the part that comes to it first.

    A test ends what the next one does not share, so the next one is chosen before it runs.
    """
    config = session.config
    taken: Path | None = config.getoption("--taken")
    if taken is None or session.testsfailed or config.option.collectonly:
        return None
    items = _taken(session.items, taken, config.getoption("--part"))
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _taken(items: list[pytest.Item], folder: Path, part: str) -> Iterator[pytest.Item]:
    """The tests that the part runs; it takes a file just before its first test."""
    for item in items:
        if len(_parts(item)) == 1 or suite.take(folder, item.nodeid.partition("::")[0], part):
            yield item


@functools.cache
def _units(root: Path) -> dict[Path, str]:
    """The part of each test file that needs no node."""
    files = sorted(file for one in suite.PURE for file in (root / one).glob("test_*.py"))
    return {file: f"unit-{number % suite.UNITS}" for number, file in enumerate(files)}


def _parts(item: pytest.Item) -> tuple[str, ...]:
    """The parts that can run a test that is not a unit test."""
    needs = item.fixturenames if isinstance(item, pytest.Function) else []
    if "bare_node" in needs:
        # One part runs the production-like machine at the same time as its tests.
        return suite.NODES[:1] if "test_production_host" in item.nodeid else suite.NODES
    return ("spare",) if "spare_node" in needs else ("rest",)


@pytest.fixture(params=["lxc"] if PRODUCTION else ["lxc", pytest.param("kvm", marks=pytest.mark.long)])
def each_type(request: pytest.FixtureRequest, node: Node) -> Iterator[str]:
    """Runs the test once with containers and once with machines."""
    if request.param == "kvm":
        node.ensure_machines()
    node.type = str(request.param)
    yield node.type
    node.type = "lxc"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A private PostgreSQL server, in memory: most of its work is to copy the files of new databases."""
    with Server(place=suite.memory()) as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def both_stores(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the tests of a module once with databases of `bare_service` on SQLite and once on PostgreSQL."""
    yield from _store(request)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def each_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same for modules that use the store, and no database of their own."""
    yield from _store(request)


def _store(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite"
        return
    with databases_on(request.getfixturevalue("postgres")):
        yield "postgresql"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the last log lines of a node to the report of a failed test: the box is destroyed with the tests."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for used in {id(one): one for one in item.funcargs.values() if isinstance(one, Node)}.values():
            report.sections += [(f"{used.box.name}: {name}", text) for name, text in used.logs().items()]
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that used the node, deletes all slices and checks that the host has only objects of the rows."""
    yield
    if "node" in request.node.fixturenames:
        used: Node = request.getfixturevalue("node")
        used.mend()
        used.delete_all()
        used.agrees()

"""Runs of the production-like machines, at the same time as the other tests, because they mostly wait.

The base is that of the box's import: in the emulated machine, the appliance of the import would be emulated twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import prodhost
import pytest
from testbed import IMAGE, Node

SUITES = {"12": "bookworm", "13": "trixie"}
TESTS = (  # tests that depend on the host. The complete path is first: the slivers of driver tests have no rows
    "tests/production/test_units.py",
    "tests/production/test_memory_guarantees.py",
    "tests/production/test_idle_memory.py",
    "tests/system/test_confinement.py",
    "tests/system/test_limits.py::test_memory_bomb_is_killed_and_the_sliver_lives",
    "tests/system/test_limits.py::test_disk_limit_holds_for_a_nested_subvolume",
    "tests/system/test_limits.py::test_the_disk_limit_and_its_use_are_shown_inside",
    "tests/system/test_launcher.py::test_root_inside_can_do_its_work_and_nothing_to_the_host",
    "tests/system/test_launcher.py::test_the_same_checks_fail_without_the_confinement",
    "tests/system/test_launcher.py::test_every_limit_that_can_be_asked_for_holds",
    "tests/system/test_launcher.py::test_the_link_has_its_address_whoever_changed_it_outside",
    "tests/system/test_kernel_memory.py::test_capture_rings_are_bounded_over_all_sockets_of_a_sliver",
    "tests/system/test_kernel_memory.py::test_rings_that_are_gone_can_be_had_again_and_those_that_are_there_cannot",
    "tests/system/test_kernel_memory.py::test_socket_buffers_count_or_have_a_limit",
    "tests/system/test_kernel_limits.py",
    "tests/system/test_proc_view.py::test_a_killed_daemon_comes_back_in_every_container",
    "tests/system/test_audit.py::test_every_check_passes_and_nothing_is_left",
    "tests/production/test_systemd.py",
    "tests/contract/test_hypervisor.py::test_a_dead_controller_takes_its_container_along",
    "tests/production/test_reboot.py::test_slices_are_left_for_the_reboot",
)
AFTER_REBOOT = (
    "tests/production/test_reboot.py::test_a_running_sliver_comes_back_as_it_was",
    "tests/production/test_reboot.py::test_host_and_database_agree_after_the_reboot",
    "tests/production/test_removal.py",
)
PACKAGED_TESTS = ("tests/production/test_first_hour.py", "tests/production/test_packages_upgrade.py")
PACKAGED_AFTER_REBOOT = ("tests/production/test_removal.py",)  # a purge, while slivers run
CENTRE_TESTS = ("tests/production/test_centre.py",)
CENTRE_AFTER_REBOOT = (
    "tests/production/test_centre_reboot.py",
    "tests/production/test_removal.py",
    "tests/production/test_centre_removal.py",
)
SOURCE_CENTRE_TESTS = (
    "tests/production/test_centre.py::test_the_sliver_runs_through_the_conversion",
    "tests/production/test_centre.py::test_slices_are_created_and_deleted",
    "tests/production/test_centre.py::test_the_units_are_active_and_enabled",
    "tests/production/test_removal.py",
)
SOURCE_CENTRE_AFTER_REBOOT = ("tests/production/test_centre_removal.py",)
CASES = {  # fixtures of their tests, by kind
    "source": "outcome",
    "packaged": "packaged_case",
    "centre": "centre_case",
    "centre-source": "source_centre_case",
}
LISTS = {  # by kind of machine: the tests of both boots
    "source": (TESTS, AFTER_REBOOT),
    "packaged": (PACKAGED_TESTS, PACKAGED_AFTER_REBOOT),
    "centre": (CENTRE_TESTS, CENTRE_AFTER_REBOOT),
    "centre-source": (SOURCE_CENTRE_TESTS, SOURCE_CENTRE_AFTER_REBOOT),
}
NOT_ON = {"12": ("tests/production/test_idle_memory.py",)}  # its kernel tracks no pages
SECONDS = 6300.0  # timeout of one machine, with other tests at the same time
POOL = """\
set -e
truncate -s 4G "$1"
mkfs.btrfs -q --nodesize 4k "$1"
mkdir -p /tmp/pool
mount -o loop "$1" /tmp/pool
trap 'umount -d /tmp/pool' EXIT
mkdir -m 700 /tmp/pool/bases
btrfs -q subvolume create "/tmp/pool/bases/$2"
cp -a "/var/lib/slicemgr/pool/bases/$2/." "/tmp/pool/bases/$2"
btrfs property set "/tmp/pool/bases/$2" ro true
"""


@dataclass(frozen=True)
class Outcome:
    """The results of the machine. results: by test, "" if it passed, else the reason."""

    status: int
    results: dict[str, str]
    log: str


def paths_of(debian: str, kind: str) -> tuple[list[str], tuple[str, ...]]:
    """The tests of both boots of a machine."""
    tests, after = LISTS[kind]
    return [one for one in tests if one not in NOT_ON.get(debian, ())], after


class Runs:
    """Runs one machine after the other in the background: started by the constructor, stopped by `stop`.

    machines: the major version of Debian and the kind of each, in the order in which they run.
    """

    def __init__(self, node: Node, machines: Sequence[tuple[str, str]]) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="machine.", dir=prodhost.CACHE.parent)
        images = {one["name"]: one for one in _images(node)}
        self._disk, self._rows = self._path("pool.raw"), self._path("images.json")
        self._rows.write_text(json.dumps([images[IMAGE]]))
        node.box.run(["sh", "-c", POOL, "sh", self._disk, str(images[IMAGE]["sha256"])], check=True, timeout=300)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._outcomes = {one: self._pool.submit(self._run, *one) for one in machines}

    def wait(self, debian: str, kind: str = "source") -> Outcome:
        """Wait for the outcome. Raises the error of the run, or TimeoutExpired after SECONDS."""
        return self._outcomes[debian, kind].result()

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()  # also ends its machine
        self._pool.shutdown(cancel_futures=True)
        self._work.cleanup()

    def _run(self, debian: str, kind: str) -> Outcome:
        if self._stopping.is_set():
            raise InterruptedError("the tests have ended")
        name = debian if kind == "source" else f"{debian}-{kind}"
        program = [sys.executable, prodhost.__file__, "--suite", SUITES[debian], "--kind", kind]
        program += ["--pool-disk", str(self._disk), "--images", str(self._rows)]
        program += [] if kind == "source" else ["--console", str(prodhost.CACHE / f"console-{kind}.log")]
        tests, after = paths_of(debian, kind)
        second = [word for test in after for word in ("--after-reboot", test)]
        words = ["unshare", "--mount", "--", *program, *second, "--", *tests]
        results, log = self._path(f"results-{name}.xml"), self._path(f"log-{name}")
        with results.open("wb") as out, log.open("wb") as errors:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
            try:
                status = self._process.wait(SECONDS)
            finally:
                if self._process.poll() is None:
                    self._process.terminate()
                    self._process.wait(60)
        found = {}
        for case in ET.fromstring(results.read_text() or "<testsuites/>").iter("testcase"):
            faults = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
            found[f"{case.get('classname')}::{case.get('name')}"] = "\n".join(f"{one.text}" for one in faults)
        return Outcome(status, found, log.read_text(errors="replace"))

    def _path(self, name: str) -> Path:
        return Path(self._work.name) / name


def chosen_debians(config: pytest.Config) -> tuple[str, ...]:
    """The major versions of Debian whose machines are selected."""
    chosen: str | None = config.getoption("--debian")
    return (chosen,) if chosen else tuple(SUITES)


def chosen_machines(config: pytest.Config, items: Sequence[pytest.Item]) -> list[tuple[str, str]]:
    """Version and kind of each machine whose tests are selected.

    Those of the packages run on the first version only, the centre from source on the last.
    """
    needed = {name for item in items if isinstance(item, pytest.Function) for name in item.fixturenames}
    debians = chosen_debians(config)
    kinds = [kind for kind in LISTS if CASES[kind] in needed]
    on = {"source": debians, "centre-source": debians[-1:]}
    return [(one, kind) for kind in kinds for one in on.get(kind, debians[:1])]


def _images(node: Node) -> list[dict[str, object]]:
    columns = [name for _, name, *_ in node.rows("pragma table_info(images)")]
    return [dict(zip(columns, row, strict=True)) for row in node.rows(f"select {', '.join(columns)} from images")]

"""A centre after a reboot: its units, its slivers and its nodes are as they were, without an administrator."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from centre_host import LONG, NODE, SERVICES, UNITS, CentreHost, SecondHost, reachable
from test_centre import BOOT_ID, LEFT
from testbed import eventually

pytestmark = pytest.mark.timeout(5400)


@pytest.fixture(scope="module")
def left() -> dict[str, Any]:
    remembered: dict[str, Any] = json.loads(LEFT.read_text())
    assert remembered["boot"] != BOOT_ID.read_text(), "there was no reboot"
    return remembered


@pytest.fixture(scope="module")
def centre(left: dict[str, Any]) -> CentreHost:
    """The centre, once its services are active."""
    made = CentreHost()
    for service in SERVICES:
        eventually(lambda service=service: made.property(service, "ActiveState") == "active", service, LONG)  # type: ignore[misc]
    return made


def test_all_units_run_by_themselves(centre: CentreHost) -> None:
    for unit in (*UNITS, "link"):
        wanted = (unit, "active")
        eventually(
            lambda unit=unit, wanted=wanted: (unit, centre.property(f"slicemgr-{unit}", "ActiveState")) == wanted,  # type: ignore[misc]
            f"{unit} is active",
            600,
        )
    centre.works(datetime.now(UTC), 600)


def test_the_sliver_runs_again(centre: CentreHost, left: dict[str, Any]) -> None:
    eventually(lambda: centre.show("kept")["state"] == "running", "kept runs", 600)
    centre.ok("wait", "kept", "--timeout", "600s")
    was, now = left["kept"]["slivers"][0], centre.show("kept")["slivers"][0]
    assert (now["ssh"], now["ports"], now["address"]) == (was["ssh"], was["ports"], was["address"])
    assert centre.inside("kept", "cat /root/data") == "precious\n"
    centre.agrees()


def test_slices_are_created(centre: CentreHost) -> None:
    centre.create("again", "--memory", "128M")
    assert centre.inside("again", "hostname") == "again-0\n"
    centre.ok("delete", "again")


def test_others_reach_the_proxy_and_the_broker_alone(centre: CentreHost) -> None:
    found = centre.places()
    assert reachable(found).keys() == {80, 443, 5671}, found


def test_there_is_no_conversion_to_undo(centre: CentreHost) -> None:
    done = centre.try_sh("slicemgr make-centre --undo")
    assert done.returncode != 0 and "no conversion was interrupted" in done.stderr, done.stderr


def test_the_second_host_is_removed(centre: CentreHost) -> None:
    """What the documents ask for before the centre is removed. The link is refused after that."""
    removed, process = datetime.now(UTC), centre.box.daemon("link")
    centre.ok("node", "remove", NODE, "--yes")
    assert NODE not in centre.ok("node", "list")
    assert process is not None
    os.kill(process, 0)
    refused = "journalctl --no-pager -u slicemgr-link --since"
    since = removed.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    eventually(lambda: "no connection to the centre" in centre.sh(f"{refused} '{since}'"), "it is refused", 300)
    SecondHost(centre).remove()

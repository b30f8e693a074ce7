"""`slicemgr uninstall --slivers`, which a purge of the Debian packages runs: it needs neither rows nor an agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testbed import BIN, IMAGE, Node, ensure_image, eventually

from slicemgr.errors import Code

UNINSTALL = (BIN / "slicemgr", "uninstall", "--slivers")


@pytest.fixture
def lone() -> Iterator[Node]:
    """A node of its own, which does not work afterwards, with a slice and a snapshot of it."""
    ensure_image()
    with Node("uninstall") as made:
        made.start()
        made.import_recipe(IMAGE)
        made.create("exp", "--count", "2")
        made.ok("snapshot", "create", "exp", "before")
        yield made


@pytest.mark.long
def test_slivers_and_images_are_deleted_without_the_database(lone: Node) -> None:
    there = {what for what, found in lone.host().items() if found}
    assert {"domains", "links", "directories", "snapshots", "groups", "addresses"} <= there
    refused = lone.box.run(UNINSTALL, timeout=300)
    assert refused.returncode == Code.CONFLICT.exit_status and "another agent runs" in refused.stderr
    assert {what for what, found in lone.host().items() if found} == there
    lone.kill("agent")
    lone.kill("web")
    lone.database.unlink()
    done = lone.box.run(UNINSTALL, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    eventually(lambda: not any(lone.host().values()), "no object of slicemgr is on the host")
    assert [one.name for one in lone.box.path("/run/libvirt/lxc").iterdir() if one.name.startswith("sm-")] == []
    pool = lone.box.path("/var/lib/slicemgr/pool")
    assert [*(pool / "bases").iterdir()] == [] and [*(pool / "slivers").iterdir()] == []
    assert "SLICEMGR" not in lone.box.run(["iptables-save"], check=True).stdout

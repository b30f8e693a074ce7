"""A node whose database is restored: what was created after the backup stays reachable, and its ports go to nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from testbed import BIN, IMAGE, STARTED, Node, eventually

FILE = "/var/lib/slicemgr/backup.tar"


class RestoredNode(Node):
    """A node of its own: a restore replaces its database."""

    def slicemgr(self, *words: str) -> str:
        """Run slicemgr in the box, which must succeed. Returns the output."""
        done = self.box.run([BIN / "slicemgr", *words], timeout=300)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def restore(self) -> str:
        """Stop the service, restore the backup, and start it again."""
        self.kill("agent")
        self.kill("web")
        text = self.slicemgr("restore", FILE, "--replace")
        self.slicemgr("init")
        self.start_web()
        self.start_agent()
        return text

    def review(self, awaited: str) -> str:
        """The review, as soon as it has the awaited text."""

        def look() -> str:
            text = self.slicemgr("restore", "--review")
            return text if awaited in text else ""

        return str(eventually(look, f"the review has {awaited!r}", 90))


@pytest.fixture(scope="module")
def bench() -> Iterator[RestoredNode]:
    with RestoredNode("restore") as made:
        made.start()
        made.import_recipe(IMAGE)
        yield made


@pytest.fixture
def restored(bench: RestoredNode) -> Iterator[RestoredNode]:
    """After a test, no slice is left, and the host agrees with the rows."""
    yield bench
    bench.mend()
    bench.box.run(["rm", "-f", FILE])
    if bench.rows("select 1 from incarnations where ended_at is null"):
        bench.slicemgr("restore", "--finish")
    bench.delete_all()
    bench.agrees()


def test_a_slice_made_after_the_backup_answers_and_keeps_its_ports(restored: RestoredNode) -> None:
    restored.create("old")
    restored.slicemgr("backup", FILE)
    new = restored.create("new", "--count", "2")
    started = {one: restored.inside(one, STARTED) for one in ("old/0", "new/0", "new/1")}
    ends = [one["ssh"] for one in new["slivers"]]
    ids = [one["id"] for one in new["slivers"]]

    assert "on hold" in restored.restore()
    text = restored.review("without a row")
    assert all(f"sliver {one} of slice new, project default, on test, running" in text for one in ids)
    answers(restored, ends)
    assert restored.slicectl("create", "more", *restored.wishes()).returncode == 4
    told = restored.slicectl("create", "more", *restored.wishes()).stderr
    assert "on hold" in told and "slicemgr restore --review" in told
    checks = {one["name"]: one for one in json.loads(restored.slicectl("doctor", "-f", "json").stdout)}
    assert checks["restore"]["ok"] is False
    assert restored.slicectl("gc", "--yes").returncode != 0
    restored.kill("agent")  # an agent that restarts during the hold writes the rules again
    restored.start_agent()
    restored.review("without a row")
    answers(restored, ends)
    assert restored.inside("old/0", STARTED) == started["old/0"]

    assert "adopted" in restored.slicemgr("restore", "--adopt", "new", "--project", "default")
    restored.slicemgr("restore", "--finish")
    third = restored.create("third", "--count", "2")
    assert not {one["ssh"]["port"] for one in third["slivers"]} & {one["port"] for one in ends}
    assert {one: restored.inside(one, STARTED) for one in started} == started, "no sliver was started again"
    assert [one["ssh"] for one in restored.show("new")["slivers"]] == ends
    restored.agrees()
    restored.ok("restart", "new")
    assert restored.inside("new/1", "id -u") == "0\n"


def answers(restored: RestoredNode, ends: list[dict[str, object]]) -> None:
    """Each end answers with an ssh banner through its port, from outside the restored."""
    for end in ends:
        with socket.create_connection((str(end["host"]), int(str(end["port"]))), timeout=30) as connection:
            assert connection.recv(8).startswith(b"SSH-2.0")


@pytest.mark.long
def test_a_released_slice_is_removed_by_its_agent(restored: RestoredNode) -> None:
    restored.slicemgr("backup", FILE)
    made = restored.create("new")
    restored.restore()
    restored.review("without a row")
    restored.slicemgr("restore", "--release", "new")
    restored.review("slicemgr restore --finish")
    assert restored.host()["domains"] == set()
    restored.slicemgr("restore", "--finish")
    assert made["slivers"][0]["id"] not in restored.host()["directories"]
    restored.agrees()


@pytest.mark.long
def test_snapshots_and_a_restart_after_the_backup_are_kept(restored: RestoredNode) -> None:
    restored.create("old")
    restored.slicemgr("backup", FILE)
    restored.inside("old", "echo precious > /root/data; sync")
    restored.ok("snapshot", "create", "old", "later")
    restored.ok("restart", "old")
    started = restored.inside("old", STARTED)
    restored.restore()
    assert "generation 1" in restored.review("newer than its row")
    restored.slicemgr("restore", "--finish")
    eventually(
        lambda: len(json.loads(restored.ok("snapshot", "list", "old", "-f", "json"))) == 1, "the snapshot has a row"
    )
    restored.agrees()
    assert restored.inside("old", STARTED) == started, "it was not started again"
    assert restored.inside("old", "cat /root/data") == "precious\n"


@pytest.mark.long
def test_a_slice_whose_root_is_gone_is_stopped(restored: RestoredNode) -> None:
    """As on a fresh restored: the rows name a sliver that the host does not have."""
    restored.create("old")
    restored.slicemgr("backup", FILE)
    restored.ok("delete", "old")
    restored.agrees()
    restored.restore()
    assert "roots gone: slice old" in restored.review("roots gone")
    restored.slicemgr("restore", "--finish")
    assert restored.show("old")["state"] == "stopped"
    assert "its root was lost" in json.dumps(restored.show("old"))
    assert restored.host()["directories"] == set()
    restored.ok("start", "old")
    assert restored.inside("old", "id -u") == "0\n"


@pytest.mark.long
def test_the_database_and_its_folder_belong_to_the_web_process(restored: RestoredNode) -> None:
    restored.slicemgr("backup", FILE)
    restored.restore()
    database = restored.database
    assert {path.stat().st_uid for path in database.parent.iterdir()} == {65534}
    restored.review("slicemgr restore --finish")

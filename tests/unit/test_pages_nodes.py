"""The forms of nodes: add with a command that is shown once, drain, rename, remove, evacuate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import Tenants

from slicemgr.hub import signer
from slicemgr.service.accounts import authentication
from slicemgr.store import allocations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import reveal

COMMAND = re.compile(r'data-copy="slicemgr join (\S+) ([^"#]+)#([0-9a-f]{64})"')
SURE = {"confirmed": "yes"}


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path) as made:
        signer.prepare(made.store, made.config.authority_dir)
        yield made


@pytest.fixture
def root(tenants: Tenants) -> Browser:
    return Browser(tenants, "root")


def add(root: Browser, name: str = "node7", site: str = "tuebingen") -> str:
    """The page of the new node."""
    return str(root.post("/new-node", {"name": name, "site": site}).headers["Location"])


def row(tenants: Tenants, name: str = "node7") -> Any:
    with tenants.store.read() as c:
        return c.execute(sa.select(t.nodes).where(t.nodes.c.name == name)).first()


def hashes(tenants: Tenants) -> list[str]:
    with tenants.store.read() as c:
        return list(c.scalars(sa.select(t.joins.c.hash)))


def join(tenants: Tenants, **values: Any) -> None:
    """What the service notes of a host that has joined."""
    with tenants.store.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "node7").values(state="active", **values))


def test_the_command_is_shown_once(tenants: Tenants, root: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the session that added the node; another command makes it invalid; not after the host has joined."""
    target = add(root)
    assert not COMMAND.search(Browser(tenants, "root").get(target).text), "of another session"
    monkeypatch.setattr(reveal, "_AGAIN", 0.0)
    first = COMMAND.search(root.get(target).text)
    assert first and hashes(tenants) == [authentication.digest(first[2])]
    again = root.get(target).text
    assert not COMMAND.search(again) and "shown only once" in again and "has not joined" in again
    assert "Run checks" not in again, "no agent could carry it out"
    second = COMMAND.search(root.get(root.post("/nodes/node7/command").headers["Location"]).text)
    assert second and hashes(tenants) == [authentication.digest(second[2])] and row(tenants).site == "tuebingen"
    join(tenants)
    refused = root.post("/nodes/node7/command")
    assert refused.status_code == 409 and "already a node" in refused.text
    assert hashes(tenants) == [authentication.digest(second[2])]


def test_errors_are_at_their_fields(tenants: Tenants, root: Browser) -> None:
    add(root)
    for path, fields, status, name in (
        ("/new-node", {"name": "Node 8", "site": "here"}, 422, "name"),
        ("/new-node", {"name": "", "site": ""}, 422, "name"),
        ("/new-node", {"name": "node8", "site": "<i>"}, 422, "site"),
        ("/new-node", {"name": "node1", "site": ""}, 409, "name"),
        ("/nodes/node7/rename", {"name": "Node 8"}, 422, "name"),
        ("/nodes/node7/rename", {"name": "node1"}, 409, "name"),
    ):
        answer = root.post(path, fields)
        assert (answer.status_code, f'id="error-{name}"' in answer.text) == (status, True), (path, fields)
        assert "<i>" not in answer.text
    with tenants.store.read() as c:
        assert sorted(c.scalars(sa.select(t.nodes.c.name))) == ["node1", "node7"]


def test_a_machine_that_is_no_centre_is_named(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        root = Browser(tenants, "root")
        assert "make-centre" in root.get("/new-node").text
        answer = root.post("/new-node", {"name": "node7", "site": ""})
        assert answer.status_code == 409 and "no certificate authority" in answer.text and row(tenants) is None


def test_a_node_is_drained_renamed_and_removed(tenants: Tenants, root: Browser) -> None:
    """Removal asks first, and refuses a node with slivers. The page of a node of its own host has no rename."""
    add(root)
    join(tenants)
    assert root.post("/nodes/node7/drain").status_code == 303 and row(tenants).drained
    shown = root.get("/nodes/node7").text
    assert 'badge held">drained' in shown and "/nodes/node7/undrain" in shown and "gets no new slivers" in shown
    root.post("/nodes/node7/undrain")
    assert not row(tenants).drained
    assert root.post("/nodes/node7/rename", {"name": "node8"}).headers["Location"].endswith("/nodes/node8")
    assert row(tenants) is None and row(tenants, "node8").site == "tuebingen"
    assert "node7 is now called node8." in root.get("/nodes/node8").text
    assert "/nodes/node1/rename" not in root.get("/nodes/node1").text
    question = root.post("/nodes/node8/remove")
    assert question.status_code == 200 and "Remove node8?" in question.text and row(tenants, "node8") is not None
    assert root.post("/nodes/node8/remove", SURE).status_code == 303 and row(tenants, "node8") is None
    refused = root.post("/nodes/node1/remove", SURE)
    assert refused.status_code == 409 and "has a sliver" in refused.text and row(tenants, "node1") is not None
    assert [action for _, action, _ in tenants.events()][-5:] == [
        *("node add", "node drain", "node undrain", "node rename", "node remove")
    ]


def test_a_silent_node_is_evacuated(tenants: Tenants, root: Browser) -> None:
    """After a question. A node that reports is refused, on its page."""
    add(root)
    join(tenants, agent_seen_at=utcnow())
    with tenants.store.write() as c:
        allocations.free(c, t.slivers.c.node == "node1")
        c.execute(t.slivers.update().values(node="node7"))
        allocations.take(c, t.slivers.c.node == "node7")
        c.execute(t.nodes.update().values(agent_seen_at=utcnow()))  # the rows are as old as the session
    refused = root.post("/nodes/node7/evacuate", SURE)
    assert refused.status_code == 409 and "node7 reports" in refused.text
    assert "/nodes/node7/evacuate" not in refused.text, "the page has no button for it"
    join(tenants, silent_since=utcnow() - timedelta(minutes=1))
    assert "/nodes/node7/evacuate" in root.get("/nodes/node7").text
    assert "Evacuate node7?" in root.post("/nodes/node7/evacuate").text
    target = root.post("/nodes/node7/evacuate", SURE).headers["Location"]
    assert "1 slice is being made again" in root.get(target).text
    with tenants.store.read() as c:
        assert set(c.scalars(sa.select(t.slivers.c.node))) == {"node1"}

"""A real agent lacks the image of a new sliver: it fetches the file from a real service, and imports it.

The agent of the box has the key of a node that has joined. The rows of the service say what that node needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from test_import import make_disk, make_tree, names, pool_of
from testbed import DATABASE, PORT, Node, eventually

import slicemgr.store
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.member import AUTHORITY, KEY
from slicemgr.certificates.private_files import write_private
from slicemgr.config import CENTRE, Config, StoreConfig
from slicemgr.model import OperationState
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.long
IDENTITY = "node-abcdefghabcdefgh"
WEB = 65534  # the user of the web process


@pytest.fixture
def member(spare_node: Node, tmp_path: Path) -> Iterator[Node]:
    """The agent runs as that of a host that has joined, beside the service."""
    node = spare_node
    file, folder = node.box.path("/etc/slicemgr/slicemgr.toml"), node.box.path("/var/lib/slicemgr/membership")
    before, now, key = file.read_text(), utcnow(), requests.new_key()
    authority = Authority.create(tmp_path / "authority", now)
    issued = authority.node(IDENTITY, key.public_key(), now)
    node.ok(
        "image",
        "import",
        make_disk(tmp_path / "disk.raw", make_tree(tmp_path / "tree"), size=16 << 20),
        "--name",
        "strange",
    )
    folder.mkdir(mode=0o700)
    write_private(folder / KEY, requests.key_pem(key))
    write_private(folder / AUTHORITY, authority.certificate.encode())
    write_private(folder / CENTRE, json.dumps({"url": f"http://127.0.0.1:{PORT}", "identity": IDENTITY}).encode())
    with _store(node) as store, store.write() as c:
        row = {"name": "node7", "identity": IDENTITY, "state": "joined", "address": "", "facts": {}}
        c.execute(t.nodes.insert().values(row))
        row = {"serial": issued.serial, "identity": IDENTITY, "certificate": issued.certificate}
        c.execute(t.certificates.insert().values(**row, issued_at=now, expires_at=now + timedelta(days=1)))
    rows = f'[store]\nurl = "sqlite:///{DATABASE}"\n'  # of the service, not of a mirror
    _restart(node, file, before.replace(f'host = "{node.box.address}"', 'host = "0.0.0.0"') + rows)
    yield node
    node.delete_all()
    shutil.rmtree(folder)
    with _store(node) as store, store.write() as c:
        c.execute(t.operations.delete().where(t.operations.c.node == "node7"))
        c.execute(t.nodes.delete().where(t.nodes.c.name == "node7"))
        c.execute(t.certificates.delete())
    _restart(node, file, before)
    node.ok("image", "delete", "strange")


def _restart(node: Node, file: Path, settings: str) -> None:
    file.write_text(settings)
    node.kill("web")
    node.start_web()
    node.kill("agent")
    node.start_agent()


def _store(node: Node) -> Store:
    url = f"sqlite:///{node.box.path('/var/lib/slicemgr')}/db/slicemgr.db"
    return slicemgr.store.open(Config(store=StoreConfig(url=url)))


def _step(node: Node) -> dict[str, Any]:
    """The step of the operation that waits for the image."""
    with node.client() as admin:
        newest = admin.operations.list(limit=1)[0]
        steps = admin.operations.get(newest["id"])["steps"]
    return next(({**one} for one in steps if one["name"] == "image"), {"state": "", "detail": ""})


def test_a_sliver_whose_image_is_not_on_its_node(member: Node) -> None:
    """It waits and says why, until the node may fetch the image; then its root is created from the new base."""
    state, pool = member.box.path("/var/lib/slicemgr"), pool_of(member)
    image = json.loads(member.ok("image", "show", "strange", "-f", "json"))
    sha256 = image["sha256"]
    upload = state / "uploads" / f"{sha256}.raw"  # where a service without an agent beside it keeps the file
    shutil.copy(state / "images" / f"{sha256}.raw", upload)
    shutil.chown(upload, WEB, WEB)
    for one in (state / "images").glob(f"{sha256}.*"):
        one.unlink()
    (pool / "bases" / sha256).rename(pool / "bases" / "elsewhere")

    member.ok("create", "exp", "--type", "lxc", "--image", "strange", "--ssh-key", f"{member.key}.pub", "--no-wait")
    eventually(lambda: "status 403" in _step(member)["detail"], "the step has the reason", 120)
    assert _step(member)["state"] == "running" and names(state / "images") == {f"{sha256}.fetch"}
    on_node = json.loads(member.ok("image", "list", "--nodes", "-f", "json"))
    assert [(one["node"], one["state"]) for one in on_node] == [("test", "failed")]

    row = {"id": "fetching", "kind": "image-push", "state": OperationState.QUEUED, "node": "node7", "user": "admin"}
    with _store(member) as store, store.write() as c:
        c.execute(t.operations.insert().values(**row, image=sha256, params={}, created_at=utcnow()))
    eventually(lambda: _step(member)["state"] == "done", "the image is there", 600)
    sliver = member.show("exp")["slivers"][0]["id"]
    eventually(lambda: (pool / "slivers" / sliver / "root/bin/busybox").exists(), "the root is created", 120)
    assert (pool / "bases" / sha256 / "bin/busybox").exists()
    assert names(state / "images") == {f"{sha256}.raw", f"{sha256}.json"}
    on_node = json.loads(member.ok("image", "list", "--nodes", "-f", "json"))
    assert [(one["node"], one["state"]) for one in on_node] == [("test", "ready")] and on_node[0]["base_size"] > 0
    (pool / "bases" / "elsewhere").rename(pool / "bases" / f".incoming-{sha256}")  # deleted with the image

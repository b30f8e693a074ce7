"""Names of the client before it was composed of resources: each works as before, with a DeprecationWarning."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
from canned_service import Answer, Canned, operation, slice

from slicemgr.client import Client, deprecated
from slicemgr.client.handle import SliceHandle

# The former public methods of Client, and their parameters.
BEFORE = {
    "accept_invitation": "token, password",
    "accept_project_invitation": "id",
    "accounts": "project=None, *, month=None, since=None",
    "add_key": "text",
    "audit": "node",
    "baseline": "node, request",
    "change_experiment": "id, **changes",
    "change_password": "old, new",
    "change_project": "name, **fields",
    "change_project_leases": "name, **fields",
    "change_user": "name, **fields",
    "clock": "",
    "clone_snapshot": "slice, snapshot, name, **wishes",
    "confirm_clock": "",
    "console": "name, sliver=0, *, screen=False",
    "create": "name=None, *, type='lxc', image=None, **wanted",  # name and image were required
    "create_project": "name, **fields",
    "create_slice": "request",
    "create_snapshot": "slice, snapshot",
    "create_token": "label, **wanted",
    "decline_project_invitation": "id",
    "decline_request": "id, reason",
    "delete_experiment": "id",
    "delete_image": "name",
    "delete_project": "name",
    "delete_slice": "name",
    "delete_snapshot": "slice, snapshot",
    "doctor": "node",
    "events": "*, limit=100, **filters",
    "experiment": "id",
    "experiment_file": "id, name",
    "experiments": "**filters",
    "gc": "node, *, apply=False",
    "get_project": "name",
    "grant_request": "id, *, reason='', **changes",
    "held": "name",
    "image": "name",
    "images": "**filters",
    "import_image": "file, size, *, name, format, on_progress=None",
    "invite_again": "name",
    "invite_member": "project, invitee, role='member'",
    "invite_user": "name, **fields",
    "keep_audit": "node, audit",
    "kernel_tables": "node",
    "keys": "user=None",
    "login": "user, password, **wanted",
    "logout": "",
    "me": "",
    "measure_io": "node, request",
    "measure_sysbench": "node, request",
    "my_invitations": "",
    "node": "name",
    "node_samples": "name, **wanted",
    "nodes": "",
    "operation": "operation_id, *, wait=None, seen=None",
    "operations": "*, limit=100, **filters",
    "project_invitations": "project",
    "project_leases": "name",
    "projects": "",
    "publish_experiment": "archive, size, *, name='', note='', public=True",
    "publish_image": "name",
    "remove_key": "id, user=None",
    "remove_member": "project, user",
    "renew_slice": "name, lease",
    "request": "id",
    "requests": "**filters",
    "resize_slice": "name, disk=None, **limits",
    "restore_snapshot": "slice, snapshot",
    "revoke_session": "id",
    "revoke_token": "id",
    "sessions": "user=None",
    "set_member": "project, user, role='member'",
    "slice": "name",
    "slice_action": "name, action",
    "slice_samples": "name, **wanted",
    "slices": "**filters",
    "snapshot": "slice, snapshot",
    "snapshots": "slice",
    "tokens": "user=None",
    "top": "",
    "user": "name",
    "users": "",
    "wait": "operation_id, timeout=None, on_progress=None, *, patience=15.0",
    "withdraw_invitation": "project, id",
    "withdraw_request": "id",
}
ATTRIBUTES = ("close", "identity", "local", "port", "project", "source", "timeout", "url")  # attributes that were kept


def accepted(method: Any) -> str:
    signature = inspect.signature(method)
    names = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=names, return_annotation=inspect.Signature.empty))[1:-1]


@pytest.fixture
def canned() -> Iterator[Canned]:
    with Canned() as service:
        yield service


@pytest.fixture
def client(canned: Canned) -> Iterator[Any]:
    """Without its type: type checkers do not know the old names."""
    with Client(canned.url, "secret", 10) as one:
        yield one


def test_the_tables_have_every_old_method() -> None:
    assert set(BEFORE) == {*deprecated.METHODS, *deprecated.LISTS}
    assert not set(deprecated.METHODS) & {*vars(Client), *vars(Client("http://x", "t"))}, "an old name is in the way"


@pytest.mark.parametrize("old", deprecated.METHODS)
def test_an_old_method_is_the_new_one(client: Any, old: str) -> None:
    new = deprecated.METHODS[old]
    with pytest.warns(DeprecationWarning, match=rf"^Client\.{old} is deprecated, use Client\.{new}$") as warned:
        method = getattr(client, old)
    assert method == attrgetter(new)(client)
    assert accepted(method) == BEFORE[old]
    assert [one.filename for one in warned] == [__file__], "the warning names the line of the caller"


@pytest.mark.parametrize("old", deprecated.LISTS)
def test_an_old_list_is_the_new_one(canned: Canned, client: Any, old: str) -> None:
    words = ["exp"] if old == "snapshots" else []
    path = "/slices/exp/snapshots" if old == "snapshots" else f"/{old}"
    canned.on(f"GET {path}", {old: [{"id": "1"}]})
    with pytest.warns(
        DeprecationWarning, match=rf"^Client\.{old}\(\) is deprecated, use Client\.{old}\.list\(\)$"
    ) as warned:
        assert getattr(client, old)(*words) == [{"id": "1"}]
    assert [one.filename for one in warned] == [__file__]
    assert accepted(getattr(client, old).list) == BEFORE[old]
    assert len(canned.requests) == 1


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_other_attributes_stay(client: Any, name: str) -> None:
    getattr(client, name)


def test_settable_attributes_reach_the_resources(canned: Canned, client: Any) -> None:
    canned.on("GET /slices", {"slices": []})
    client.project, client.timeout, client.identity = "lab", 5.0, "key"
    assert client.slices.list() == [] and canned.requests[0].query["project"] == "lab"
    assert (client.project, client.timeout, client.identity) == ("lab", 5.0, "key")


def test_a_name_that_never_was_is_an_attribute_error(client: Any) -> None:
    with pytest.raises(AttributeError, match="'Client' object has no attribute 'slicez'"):
        client.slicez  # noqa: B018
    with pytest.raises(TypeError, match="not callable"):
        client.account()


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_a_script_of_before_works(canned: Canned, client: Any) -> None:
    accepted_slice = Answer(202, {"operation": operation(), "slice": slice()})
    canned.on("POST /slices", accepted_slice)
    canned.on("GET /slices", {"slices": [slice()]})
    canned.on("GET /slices/exp", slice())
    canned.on("DELETE /slices/exp", Answer(202, {"operation": operation()}))
    canned.on("POST /slices/exp/renew", slice())
    canned.on("POST /slices/exp/stop", Answer(202, {"operation": operation()}))
    canned.on("GET /slices/exp/samples", {"slivers": []})
    canned.on("GET /operations/op1", operation("done", 2))
    canned.on("POST /images", Answer(202, {"image": {"name": "i"}, "operation": operation()}))
    canned.on("GET /nodes/node1", {"name": "node1"})
    canned.on("GET /me", {"name": "root"})
    with client.create("exp", image="debian-12", ssh_keys=[]) as exp:
        assert isinstance(exp, SliceHandle)
        assert exp.wait().renew("7d") == slice()["expires_at"]
    assert client.held(name="exp").act("stop").wait().slivers == slice()["slivers"]
    assert client.create_slice({"name": "exp"})["slice"] == client.slice("exp") == client.slices(state="running")[0]
    assert client.wait(client.slice_action("exp", "stop")["id"], timeout=10)["state"] == "done"
    assert client.operation("op1", wait=0, seen=1)["version"] == 2
    assert client.import_image(io.BytesIO(b"data"), 4, name="i", format="raw")["image"] == {"name": "i"}
    assert client.slice_samples("exp", since="1h") == {"slivers": []}
    assert (client.node("node1")["name"], client.me()["name"]) == ("node1", "root")
    assert canned.asked("POST /images")[0].data == b"data"
    assert len(canned.asked("DELETE /slices/exp")) == 1


@pytest.mark.parametrize("old", deprecated.MODULES)
def test_an_old_module_is_the_new_one(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    new = f"slicemgr.{deprecated.MODULES[old]}"
    monkeypatch.delitem(sys.modules, f"slicemgr.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match=rf"^slicemgr\.{old} is deprecated, use {new}$"):
        module = import_module(f"slicemgr.{old}")
    monkeypatch.delitem(sys.modules, f"slicemgr.{old}")
    assert module is import_module(new)
    assert module.__name__ == new and module.__spec__ is not None and module.__spec__.name == new


def test_old_modules_in_a_fresh_process() -> None:
    code = (
        "from slicemgr.client_slice import HeldSlice\n"
        "import slicemgr.client_ssh, slicemgr.client.ssh, slicemgr.client.handle\n"
        "from slicemgr.client_settings import choose_project, find_settings\n"
        "assert slicemgr.client_ssh is slicemgr.client.ssh and HeldSlice is slicemgr.client.handle.SliceHandle\n"
        "try:\n    import slicemgr.client_never\nexcept ModuleNotFoundError as error:\n    print(error.name)\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "slicemgr.client_never\n"), done.stderr
    for line, old in ((1, "slicemgr.client_slice"), (1, "HeldSlice"), (2, "slicemgr.client_ssh")):
        assert f"<string>:{line}: DeprecationWarning: {old} is deprecated" in done.stderr
    refused = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert refused.returncode == 1 and "DeprecationWarning: slicemgr.client_slice" in refused.stderr

"""The page of an operation over the test client: its times, steps and log, in the words of its subject."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from browsers import Browser
from tenants import Tenants

from slicemgr.model import OperationState
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def bob(tenants: Tenants) -> Browser:
    return Browser(tenants, "bob")


def operation(tenants: Tenants, **values: object) -> str:
    """Change the operation of the slice `exp`; its path. The projects are older than it."""
    with tenants.store.write() as c:
        c.execute(t.projects.update().values(created_at=utcnow() - timedelta(days=1)))
        c.execute(t.operations.update().where(t.operations.c.id == tenants.found["operation"]).values(**values))
    return f"/operations/{tenants.found['operation']}"


def test_an_operation_has_its_times_steps_and_log(tenants: Tenants, bob: Browser) -> None:
    now = utcnow()
    id_ = tenants.found["operation"]
    path = operation(tenants, created_at=now - timedelta(seconds=65), started_at=now - timedelta(seconds=62))
    sliver = tenants.rows()[0].sliver.id
    for name, begun, ended in (("root", 60, 59.5), ("ssh", 59, 30)):
        for state, at in ((OperationState.RUNNING, begun), (OperationState.DONE, ended)):
            tenants.record(pending.StepSeen(id_, sliver, name, state, "", None, now - timedelta(seconds=at)))
    operation(tenants, state="done", finished_at=now - timedelta(seconds=2))
    page = bob.get(path).text
    assert f"<code>{id_}</code>" in page and "<dd>1 minute</dd>" in page
    assert page.count("UTC</time>") >= 3
    times = re.findall(r'"Began after">([^<]+)</td><td class="number" data-label="Duration">([^<]+)<', page)
    assert times == [("5.00 s", "0.50 s"), ("6.00 s", "29.0 s")]
    assert "Wait for SSH" in page and f"/log?slice=exp&amp;project=lab&amp;since={now:%Y-%m-%d}" in page


def test_the_parts_of_several_nodes_are_a_table(tenants: Tenants, bob: Browser) -> None:
    path = operation(tenants, state="running")
    assert 'id="parts"' not in bob.get(path).text, "one part"
    with tenants.store.write() as c:
        row = {"operation": tenants.found["operation"], "node": "node2", "state": "failed", "error": "<b>no room</b>"}
        c.execute(t.operation_parts.insert().values(**row))
    page = bob.get(path).text
    table = page[page.index('id="parts"') :]
    assert '<th scope="row">node1</th>' in table and "&lt;b&gt;no room&lt;/b&gt;" in table and "<b>no room" not in page


def test_what_happened_meanwhile_is_its_log(tenants: Tenants, bob: Browser) -> None:
    bob.post("/slices/exp/renew?project=lab", {"lease": "9d"})
    path = operation(tenants, state="done", finished_at=utcnow())
    assert "<b>renew</b>" in bob.get(path).text
    operation(tenants, finished_at=utcnow() - timedelta(hours=1))
    assert "<b>renew</b>" not in bob.get(path).text, "afterwards"


def test_operations_on_slices_are_about_slices(tenants: Tenants, bob: Browser) -> None:
    """Although a slice has an image."""
    page = bob.get(operation(tenants, state="done", finished_at=utcnow(), image_name="debian-12")).text
    assert 'href="/slices/exp?project=lab">Open exp</a>' in page and 'href="/slices">Slices</a> / lab' in page
    page = bob.get(operation(tenants, kind="delete")).text
    assert "My slices" in page and "Open " not in page.split("<main", 1)[1]


def test_a_deleted_slice_is_not_offered(tenants: Tenants, bob: Browser) -> None:
    path = operation(tenants, state="done", finished_at=utcnow())
    assert "Open exp" in bob.get(path).text, "the control"
    with tenants.store.write() as c:
        c.execute(t.slices.delete().where(t.slices.c.name == "exp"))
    page = bob.get(path).text.split("<main", 1)[1]
    assert "/slices/exp" not in page and "My slices" in page


def test_the_page_of_an_image_shows_its_thin_kernel(tenants: Tenants, bob: Browser) -> None:
    kernel = {"bios": False, "uefi": False, "kernel": "/boot/vmlinuz-6.1-thin", "initrd": "", "root": "root=/dev/vda1"}
    tenants.add_image("ef" * 32, "thin", boot={**kernel, "mmio": True, "programs": ["nginx", "redis"]})
    tenants.add_image("fe" * 32, "base", boot={**kernel, "mmio": True})
    tenants.add_image("fd" * 32, "usual", boot=kernel)
    pages = {name: bob.get(f"/images/{name}").text for name in ("thin", "base", "usual")}
    assert all("/boot/vmlinuz-6.1-thin" in page for page in pages.values())
    assert "with options for nginx, redis" in pages["thin"] and "<dd>yes</dd>" in pages["base"]
    assert "Thin kernel" not in pages["usual"]


def test_a_deleted_image_is_not_offered(tenants: Tenants, bob: Browser) -> None:
    about = {"kind": "image-import", "state": "done", "slice_name": "", "project": "lab", "finished_at": utcnow()}
    for name, there in (("lab-image", True), ("gone", False)):
        page = bob.get(operation(tenants, image_name=name, **about)).text.split("<main", 1)[1]
        assert (f'href="/images/{name}"' in page) is there and 'href="/images">Images</a>' in page


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("image-import", "failed", ("Import image lab-image", "Images</a>", "Extract the files")),
        ("image-import", "done", ("Image imported", "Open lab-image", 'href="/images/lab-image"')),
        ("image-delete", "done", ("Image deleted", 'href="/images">Images</a>')),
    ],
)
def test_image_operations_are_about_images(
    tenants: Tenants, bob: Browser, kind: str, state: str, words: tuple[str, ...]
) -> None:
    """In their words, with links to images, and with the step that failed."""
    path = operation(
        tenants, kind=kind, state=state, slice_name="", image_name="lab-image", project="lab", finished_at=utcnow()
    )
    failed = state == "failed"
    tenants.record(
        pending.StepSeen(tenants.found["operation"], "", "check", OperationState.DONE, "", 100),
        pending.StepSeen(
            tenants.found["operation"],
            *("", "extract"),
            OperationState.FAILED if failed else OperationState.DONE,
            "the pool is full" if failed else "",
        ),
    )
    page = bob.get(path).text
    assert [one in page for one in words] == [True] * len(words), page
    assert "My slices" not in page.split("<main", 1)[1] and ">Ready<" not in page
    assert ("the pool is full" in page) is failed
    assert (
        re.search(r'Extract the files</th><td data-label="State"><span><span class="badge bad">', page) is not None
    ) is failed


@pytest.mark.parametrize(("kind", "words"), [("doctor", "Check the node: done"), ("gc", "Find leftovers: done")])
def test_operations_on_a_node_are_about_nodes(tenants: Tenants, kind: str, words: str) -> None:
    about = {"kind": kind, "slice_name": "", "slice_id": "", "project": ""}
    path = operation(tenants, state="done", finished_at=utcnow(), **about)
    page = Browser(tenants, "root").get(path).text.split("<main", 1)[1]
    assert words in page and 'href="/nodes">Nodes</a>' in page and "My slices" not in page

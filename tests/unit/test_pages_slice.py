"""The page of a slice beyond start and stop: snapshots, curves, consoles, disk, lease and keys."""

from __future__ import annotations

import re

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import BOB, Tenants, ask
from test_pages import errors, loaded, names, queries
from test_samples import fill

from slicemgr.model import GIB, MIB, OperationState, Phase
from slicemgr.service.slices import snapshots
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

EXP = "/slices/exp?project=lab"
BEFORE = "/slices/exp/snapshots/before"
LAB = "?project=lab"


@pytest.fixture
def bob(tenants: Tenants) -> Browser:
    return Browser(tenants, "bob")


def asked(tenants: Tenants, kind: str) -> int:
    """How many operations of this kind there are."""
    o = t.operations.c
    with tenants.store.read() as c:
        return c.scalar(sa.select(sa.func.count()).where(o.kind == kind)) or 0


def made(tenants: Tenants, name: str) -> None:
    """Record the requested snapshot, as the agent does."""
    with tenants.store.read() as c:
        id_ = str(c.scalar(sa.select(t.snapshots.c.id).where(t.snapshots.c.name == name)))
        operation = str(c.scalar(sa.select(t.operations.c.id).where(t.operations.c.state == "queued")))
    mine = [row.sliver.id for row in tenants.rows() if row.sliver.slice_name == "exp"]
    tenants.record(*(pending.SnapshotMade(one, id_, 3 * MIB) for one in mine))
    tenants.record(pending.OperationEnded(operation, OperationState.DONE))


def alone(tenants: Tenants) -> None:
    """Every operation has ended."""
    with tenants.store.write() as c:
        c.execute(t.operations.update().values(state="done", finished_at=utcnow()))


def test_the_page_of_a_container_names_what_shows_its_disk_limit(tenants: Tenants, bob: Browser) -> None:
    """In a virtual machine `df` does."""
    named = "/.slicemgr/disk-limit"
    assert named in bob.get(EXP).text
    with tenants.store.write() as c:
        c.execute(t.slices.update().values(type="kvm"))
    assert named not in bob.get(EXP).text


# snapshots


def test_from_none_to_made_as_the_page_sees_it(tenants: Tenants, bob: Browser) -> None:
    """The list polls; unchanged content is not sent again; it contains no CSRF token."""
    alone(tenants)
    answer = bob.post(f"/slices/exp/snapshots{LAB}", {"snapshot": "later"})
    assert answer.headers["Location"] == f"{EXP}&section=snapshots#snapshots" and asked(tenants, "snapshot") == 2
    page = bob.get(EXP).text
    assert "Snapshot later is being created" in page and "creating</span>" in page
    (path,) = re.findall(r'hx-get="(/slices/exp/snapshots\?[^"]+)" hx-trigger="every 1.0s"', page)
    path = path.replace("&amp;", "&")
    assert bob.part(path).status_code == 204
    made(tenants, "later")
    part = bob.part(path)
    assert part.status_code == 200 and "csrf_token" not in part.text
    assert "3 MiB" in part.text and "every 5.0s" in part.text and f"{BEFORE}/restore" in part.text


@pytest.mark.parametrize("typed", ["", "Upper", "-x", "x" * 41, "<b>x</b>", "../x", "zwei\u0301", "before"])
def test_a_name_that_cannot_be(tenants: Tenants, bob: Browser, typed: str) -> None:
    alone(tenants)
    answer = bob.post(f"/slices/exp/snapshots{LAB}", {"snapshot": typed})
    assert answer.status_code == (409 if typed == "before" else 422)
    assert "snapshot" in errors(answer.text) and "<b>x" not in answer.text
    assert asked(tenants, "snapshot") == 1


def test_what_is_not_about_the_name_is_said_on_the_page(tenants: Tenants, bob: Browser) -> None:
    alone(tenants)
    bob.post(f"/slices/exp/snapshots{LAB}", {"snapshot": "later"})
    answer = bob.post(f"/slices/exp/snapshots{LAB}", {"snapshot": "third"})
    assert answer.status_code == 409 and "Snapshot later of slice exp is being created" in answer.text
    assert "slicectl" not in answer.text.split("<main", 1)[1].split("<section", 1)[0]
    assert 'value="third"' in answer.text, "what was typed is kept"


@pytest.mark.parametrize(("what", "kind", "kept"), [("restore", "restore", 1), ("delete", "snapshot-delete", 0)])
def test_one_is_asked_before_anything_is_lost(tenants: Tenants, bob: Browser, what: str, kind: str, kept: int) -> None:
    alone(tenants)
    question = bob.get(f"{BEFORE}/{what}{LAB}").text
    assert asked(tenants, kind) == 0 and ("are lost" if kept else "will be deleted") in question
    fields = {one: re.findall(rf'name="{one}" value="([^"]+)"', question)[-1] for one in ("id", "made", "once")}
    answers = [bob.post(f"{BEFORE}/{what}{LAB}", fields) for _ in range(2)]
    assert [one.headers["Location"] for one in answers] == [f"{EXP}&section=snapshots#snapshots"] * 2
    assert asked(tenants, kind) == 1 and tenants.count("snapshots") == kept


def test_an_older_snapshot_of_that_name_is_left_alone(tenants: Tenants, bob: Browser) -> None:
    """Another user deleted the shown one and created a new one."""
    alone(tenants)
    question = bob.get(f"{BEFORE}/delete{LAB}").text
    fields = {one: re.findall(rf'name="{one}" value="([^"]+)"', question)[-1] for one in ("id", "made")}
    with tenants.store.write() as c:
        c.execute(t.snapshots.update().values(created_at=utcnow()))
    for what in ("restore", "delete", "clone"):
        answer = bob.post(f"{BEFORE}/{what}{LAB}", {**fields, "name": "again"})
        assert answer.status_code == 409 and "earlier snapshot" in answer.text
    assert asked(tenants, "restore") == asked(tenants, "snapshot-delete") == 0 and tenants.count("snapshots") == 1
    del fields["made"]
    assert bob.post(f"{BEFORE}/delete{LAB}", fields).status_code == 303, "the control"
    assert bob.get(f"{BEFORE}/delete{LAB}").status_code == 404
    assert bob.post(f"{BEFORE}/delete{LAB}").status_code == 404


def test_not_while_it_is_needed(tenants: Tenants, bob: Browser) -> None:
    """The confirmation page shows the reason."""
    alone(tenants)
    assert bob.post(f"{BEFORE}/clone{LAB}", {"name": "again"}).status_code == 303
    answer = bob.post(f"{BEFORE}/delete{LAB}")
    assert answer.status_code == 409 and "Slice again is being created from a snapshot of exp" in answer.text
    assert tenants.count("snapshots") == 1


def test_a_clone_is_a_slice_of_its_own(tenants: Tenants, bob: Browser) -> None:
    page = bob.get(f"{BEFORE}/clone{LAB}").text
    assert 'name="name" type="text" value="exp-before"' in page
    assert '1 <b class="more">+ 1</b> of 8' in page, "what it takes of the quota"
    answer = bob.post(f"{BEFORE}/clone{LAB}", {"name": "again", "lease": "3d", "disk": "6G"})
    assert answer.headers["Location"] == "/slices/again?project=lab"
    with tenants.store.read() as c:
        both = sa.select(t.slices.c.expires_at, t.slivers.c.disk).join(t.slivers, t.slivers.c.slice == t.slices.c.id)
        expires, disk = c.execute(both.where(t.slices.c.name == "again")).one()
    assert 2.9 < (expires - utcnow()).total_seconds() / 86400 < 3.1 and disk == 6 * GIB


@pytest.mark.parametrize(
    ("wrong", "status", "field"),
    [
        ({"name": ""}, 422, "name"),
        ({"name": "exp"}, 409, "name"),
        ({"name": "<i>x"}, 422, "name"),
        ({"lease": "soon"}, 422, "lease"),
        ({"lease": "9999d"}, 422, "lease"),
        ({"disk": "lots"}, 422, "disk"),
        ({"disk": "5"}, 422, "disk"),
    ],
)
def test_a_clone_that_cannot_be(tenants: Tenants, bob: Browser, wrong: dict[str, str], status: int, field: str) -> None:
    answer = bob.post(f"{BEFORE}/clone{LAB}", {"name": "again", **wrong})
    assert answer.status_code == status and field in errors(answer.text), answer.text
    assert names(tenants) == ["exp"] and "<i>x" not in answer.text


def test_a_clone_beyond_the_quota(tenants: Tenants, bob: Browser) -> None:
    with tenants.store.write() as c:
        c.execute(t.quotas.update().where(t.quotas.c.project == "lab").values(slices=1))
    answer = bob.post(f"{BEFORE}/clone{LAB}", {"name": "again"})
    assert answer.status_code == 403 and "slices requested" in answer.text and names(tenants) == ["exp"]


def test_who_may_not_change_it_sees_snapshots_and_no_buttons(tenants: Tenants, bob: Browser) -> None:
    theirs = Browser(tenants, "dave").get(EXP).text
    for words in (f"{BEFORE}/delete", "/exp/0/console", 'name="snapshot"', "/exp/resize"):
        assert words in bob.get(EXP).text and words not in theirs
    assert ">before</th>" in theirs


def test_the_confirmation_says_how_many_snapshots_go_too(tenants: Tenants, bob: Browser) -> None:
    assert "<b>1 snapshot</b>" in bob.get(f"/slices/exp/delete{LAB}").text
    with tenants.store.write() as c:
        c.execute(t.snapshots.delete())
    assert "snapshot" not in bob.get(f"/slices/exp/delete{LAB}").text.split("<main", 1)[1]


def test_what_is_gone_ends_the_looking(tenants: Tenants, bob: Browser) -> None:
    path = f"/slices/exp/snapshots{LAB}"
    assert bob.get(path).headers["Location"] == f"{EXP}&section=snapshots#snapshots"
    with tenants.store.write() as c:
        c.execute(t.slices.delete())
    assert bob.part(path).status_code == 286


# disk, consoles, keys, lease


def limit(tenants: Tenants) -> int:
    """Bytes of disk that the one sliver may have."""
    return tenants.rows()[0].sliver.limits.disk


def test_a_larger_disk(tenants: Tenants, bob: Browser) -> None:
    has = limit(tenants)
    for typed, status in (("", 422), ("lots", 422), ("1G", 409), ("900T", 403)):
        answer = bob.post(f"/slices/exp/resize{LAB}", {"disk": typed})
        assert (answer.status_code, "disk" in errors(answer.text)) == (status, True), answer.text
        assert '<details class="more" open>' in answer.text, "the field can be seen"
    answer = bob.post(f"/slices/exp/resize{LAB}", {"disk": "8G"})
    assert answer.headers["Location"] == f"{EXP}&section=settings#settings"
    assert "The limits of each sliver of exp are now: disk 8.0 GiB." in bob.get(EXP).text
    assert limit(tenants) == 8 * GIB > has


@pytest.mark.parametrize("sliver_type", ["lxc", "kvm"])
def test_consoles_of_what_runs(tenants: Tenants, bob: Browser, sliver_type: str) -> None:
    """Each running sliver has a console, machines a screen, also while they boot; stopped ones have none.

    The link back is the slice's page.
    """
    with tenants.store.write() as c:
        c.execute(t.slices.update().values(type=sliver_type))
    for what, there in (("console", True), ("screen", sliver_type == "kvm")):
        path = f"/slices/exp/0/{what}{LAB}"
        assert (f'href="{path}"' in bob.get(EXP).text) is there
        assert (f'href="{EXP}"' in bob.get(path).text) is there
    for phase in (Phase.PENDING, Phase.STOPPED):
        tenants.record(*(pending.SliverSeen(row.sliver.id, phase) for row in tenants.rows()))
        page = bob.get(EXP).text
        assert [f"/exp/0/{what}?" in page for what in ("console", "screen")] == [sliver_type == "kvm"] * 2, phase
    with tenants.store.write() as c:
        c.execute(t.slivers.update().values(desired="stopped"))
    assert "/exp/0/" not in bob.get(EXP).text


# sections


def test_the_sections_of_the_page(tenants: Tenants, bob: Browser) -> None:
    """Each has a link, and contains what it names. Anchors of earlier links are within the section that has their
    content.
    """
    page = bob.get(EXP).text
    parts = re.split(r'<div class="part" id="(\w+)">', page)
    content = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(content) == ["overview", "usage", "snapshots", "settings"]
    assert re.findall(r'<a id="tab-(\w+)" href="#(\w+)">', page) == [(one, one) for one in content]
    for name, anchors in {
        "overview": ("login", "slivers", "events"),
        "usage": ("curves-title",),
        "snapshots": ("snapshots-title",),
        "settings": ("limits", "lease"),
    }.items():
        assert [f'id="{anchor}"' in content[name] for anchor in anchors] == [True] * len(anchors), name
    assert "data-open" not in page
    assert 'id="tab-usage"' in bob.part(EXP).text and 'id="usage"' not in bob.part(EXP).text


@pytest.mark.parametrize(
    ("path", "fields", "section"),
    [
        ("resize", {"disk": "lots"}, "settings"),
        ("renew", {"lease": "soon"}, "settings"),
        ("snapshots", {"snapshot": "Upper"}, "snapshots"),
    ],
)
def test_an_error_opens_its_section(bob: Browser, path: str, fields: dict[str, str], section: str) -> None:
    """A browser without scripts shows the field as well."""
    assert f'<div class="sections" data-open="{section}">' in bob.post(f"/slices/exp/{path}{LAB}", fields).text


def test_each_sliver_has_its_host_key_to_copy(tenants: Tenants, bob: Browser) -> None:
    ask(tenants, BOB, "many", count=3)
    for path, count in (("/slices/many?project=lab", 3), (EXP, 1)):
        mine = [row.sliver for row in tenants.rows() if f"/{row.sliver.slice_name}?" in path]
        public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}"
        tenants.record(
            *(
                pending.SliverSeen(one.id, Phase.RUNNING, host_key=public.format(f"{number:043}"[:43]))
                for number, one in enumerate(mine)
            )
        )
        keys = re.findall(r'data-copy="(SHA256:[^"]+)"', bob.get(path).text)
        assert len(keys) == len(set(keys)) == count


def test_each_sliver_has_its_console(tenants: Tenants, bob: Browser) -> None:
    ask(tenants, BOB, "many", count=3)
    tenants.record(*(pending.SliverSeen(row.sliver.id, Phase.RUNNING) for row in tenants.rows()))
    page = bob.get("/slices/many?project=lab").text
    assert [page.count(f"/slices/many/{index}/console?") for index in range(4)] == [1, 1, 1, 0]


def test_keys_that_a_sliver_lacks_and_what_its_lease_says(tenants: Tenants, bob: Browser) -> None:
    """In readable text: no RFC 3339, no shell commands, and no markup."""
    with tenants.store.write() as c:
        c.execute(t.slivers.update().values(keys_missing="its agent does <b>not</b> answer"))
        notice = "the lease ends at 2026-11-28T11:54:00Z: `slicectl renew exp --lease 7d`"
        c.execute(t.slices.update().values(lease_notice=notice))
    for path in (EXP, "/projects/lab"):
        page = bob.get(path).text
        assert "The lease ends at Sat 28 Nov 2026, 11:54 UTC." in page and "slicectl renew" not in page
    assert "does &lt;b&gt;not&lt;/b&gt; answer" in bob.get(EXP).text


def test_a_renewal_that_comes_too_early_is_told_on_the_page(tenants: Tenants, bob: Browser) -> None:
    with tenants.store.write() as c:
        c.execute(t.lease_rules.insert().values(project="lab", window=3600))
    answer = bob.post(f"/slices/exp/renew{LAB}", {"lease": "3d"})
    assert answer.status_code == 409 and "too early to renew" in answer.text and "Log in" in answer.text


def test_without_javascript_it_comes_again_only_while_something_moves(tenants: Tenants, bob: Browser) -> None:
    """Otherwise a reload would delete typed text."""
    alone(tenants)
    assert 'http-equiv="refresh"' not in bob.get(EXP).text
    bob.post(f"/slices/exp/snapshots{LAB}", {"snapshot": "later"})
    assert 'http-equiv="refresh"' in bob.get(EXP).text
    # A browser loads no URL again that differs in nothing but the anchor.
    urls = [f"{EXP}&section=snapshots", f"{EXP}&section=snapshots&turn=1", f"{EXP}&section=elsewhere&turn=2"]
    found = [re.findall(r'content="5; url=([^"]+)"', bob.get(one).text)[0].replace("&amp;", "&") for one in urls]
    first = f"{EXP}&section=snapshots&turn=1#snapshots"
    assert found == [first, first.replace("turn=1", "turn=2"), f"{EXP}&turn=1"]


# curves


def test_the_first_look_is_light(tenants: Tenants, bob: Browser) -> None:
    """With curves, without compression: below 300 KiB."""
    files = loaded(bob, EXP)
    assert any("uplot" in one for one in files)
    assert sum(len(bob.get(one).data) for one in (EXP, *files)) < 300 << 10


def test_samples_for_who_is_signed_in(tenants: Tenants, bob: Browser) -> None:
    """The page has their address; JSON and CSV as over REST; the browser must not cache them."""
    fill(tenants, 5, int(utcnow().timestamp()) - 200, net_in=300)
    (path,) = re.findall(r'data-curves="([^"]+)"', bob.get(EXP).text)
    assert path == f"/slices/exp/samples{LAB}"
    answer = bob.get(f"{path}&since=1h&columns=working,net_in&total=true")
    told = answer.get_json()
    assert told["slivers"][0]["series"]["net_in"] == [10.0] * 5 and answer.headers["Cache-Control"] == "no-store"
    assert bob.get(f"{path}&format=csv").text.startswith("at,sliver,")
    assert bob.get(f"{path}&since=never").status_code == 422
    assert Browser(tenants, "carol").get(path).status_code == 404
    root = Browser(tenants, "root")
    (path,) = re.findall(r'data-curves="([^"]+)"', root.get("/nodes/node1").text)
    assert root.get(f"{path}?since=1h").get_json()["series"]["memory"] == [100] * 5
    assert root.get("/nodes/none/samples").status_code == 404
    assert bob.get(path).status_code == 403


def test_queries_do_not_grow_with_snapshots_and_slivers(tenants: Tenants, bob: Browser) -> None:
    with tenants.store.write() as c:
        c.execute(t.quotas.delete())
    ask(tenants, BOB, "many", count=20)
    tenants.record(*(pending.SliverSeen(row.sliver.id, Phase.RUNNING, host_key="k") for row in tenants.rows()))
    paths = ("/slices/many?project=lab", "/slices/many/samples?project=lab", "/projects/lab")
    few = [queries(tenants, bob, path) for path in paths]
    for number in range(8):
        alone(tenants)
        snapshots.create(tenants.store, tenants.config, snapshots.SliceReference("many", BOB), f"s{number}")
    assert [queries(tenants, bob, path) for path in paths] == few

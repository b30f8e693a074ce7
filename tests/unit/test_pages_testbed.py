"""The other pages over the test client: secrets, uploads, stale pages, second clicks, markup."""

from __future__ import annotations

import re
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import LAB_IMAGE, Tenants
from werkzeug.test import EnvironBuilder

from slicemgr.service.nodes import operations
from slicemgr.service.projects import projects
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import images, reveal

QCOW2 = b"QFI\xfb" + bytes(5000)


def test_a_token_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the session that made it; not to another, not again, and not with a made up key."""
    with Tenants(tmp_path) as tenants:
        bob, once = Browser(tenants, "bob"), Browser(tenants, "bob").once("/account")
        fields = {"label": "x", "scope": "read", "expires": "1d", "once": once}
        target = bob.post("/account/tokens", fields).headers["Location"]
        assert bob.post("/account/tokens", fields).headers["Location"] == target, "a second click makes no second one"
        assert len(re.findall("token create", str(tenants.events()))) == 1 + str(before(tenants)).count("token create")
        assert "smgr_" not in Browser(tenants, "bob").get(target).text
        assert "smgr_" not in Browser(tenants, "alice").get(target).text
        assert "smgr_" not in bob.get("/account?shown=made-up").text
        monkeypatch.setattr(reveal, "_AGAIN", 0.0)
        assert "smgr_" in bob.get(target).text
        again = bob.get(target).text
        assert "smgr_" not in again and "shown only once" in again


def encoded(fields: dict[str, Any]) -> tuple[bytes, str]:
    """A form with a file as a browser sends it: the body and its type."""
    with closing(EnvironBuilder(method="POST", data=fields)) as builder:
        environ = builder.get_environ()
        with closing(environ["wsgi.input"]) as body:
            return body.read(), environ["CONTENT_TYPE"]


def before(tenants: Tenants) -> list[tuple[str, str, str]]:
    """The events of the seed."""
    return [one for one in tenants.events() if "'x'" not in one[2]]


def test_an_upload_that_is_wrong_leaves_nothing(tmp_path: Path) -> None:
    """Wrong kind, empty, missing, truncated, or with a used name: an error at the field, no file, no row."""
    good = {"name": "new", "format": "qcow2", "project": "lab"}
    with Tenants(tmp_path) as tenants:
        bob, kept = Browser(tenants, "bob"), set(tenants.config.uploads_dir.iterdir())
        rows = tenants.count("images")
        for fields, status, said in (
            ({**good, "file": b"no disk"}, 422, "not a qcow2 image"),
            ({**good, "format": "raw", "file": QCOW2}, 422, "is a qcow2 image"),
            ({**good, "format": "iso", "file": QCOW2}, 422, "unknown"),
            ({**good, "file": b""}, 422, "is empty"),
            (good, 422, "is missing"),
            ({**good, "name": "Bad Name", "file": QCOW2}, 422, "Bad Name"),
            ({**good, "name": LAB_IMAGE, "file": QCOW2}, 409, "already"),
            ({**good, "project": "rival", "file": QCOW2}, 404, "rival"),
            ({**good, "project": "-", "file": QCOW2}, 403, "may not"),
        ):
            answer = bob.post("/new-image", fields, content_type="multipart/form-data")
            assert (answer.status_code, said in answer.text) == (status, True), (fields, answer.text)
        whole, kind = encoded({"csrf_token": bob.proof(), **good, "file": (BytesIO(QCOW2), "d")})
        cut = bob.client.post("/new-image", data=whole[:-3000], content_type=kind)
        assert cut.status_code == 422 and "interrupted" in cut.text
        assert set(tenants.config.uploads_dir.iterdir()) == kept and tenants.count("images") == rows
        assert bob.client.post("/new-image", data=whole, content_type=kind).status_code == 303, "the control"
        assert len(set(tenants.config.uploads_dir.iterdir()) - kept) == 1


def test_a_large_file_without_the_proof_is_not_read(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        bob = Browser(tenants, "bob")
        whole, kind = encoded({"name": "new", "file": (BytesIO(bytes(8 << 20)), "d")})
        answer = bob.client.post("/new-image", data=whole, content_type=kind)
        assert answer.status_code == 400 and list(tenants.config.uploads_dir.iterdir()) == []


def test_without_the_look_at_its_beginning_a_wrong_file_would_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(images, "_checked", lambda chunks, format: chunks)
    with Tenants(tmp_path) as tenants:
        fields = {"name": "new", "format": "qcow2", "project": "lab", "file": b"no disk"}
        assert Browser(tenants, "bob").post("/new-image", fields).status_code == 303


def test_stale_pages_of_an_admin(tmp_path: Path) -> None:
    """Stale pages do not affect a new slice with the old name, or an object that another admin changed meanwhile."""
    with Tenants(tmp_path) as tenants:
        root = Browser(tenants, "root")
        chosen = re.search(r'value="(lab/exp/[^"]+)"', root.get("/all-slices").text)
        assert chosen
        asked = {"doing": "delete", "typed": "delete 1"}
        root.post("/all-slices/apply", {**asked, "chosen": "lab/exp/2020-01-01T00:00:00Z"})
        root.post("/all-slices/apply", {**asked, "chosen": chosen[1], "typed": "delete"})
        assert "delete" not in [action for _, action, _ in tenants.events()]
        assert "lab/nowhere" in root.post(
            "/all-slices/apply", {**asked, "chosen": "lab/nowhere/x"}, follow_redirects=True
        ).text.replace("Lab", "lab")
        root.post("/all-slices/apply", {**asked, "chosen": chosen[1]})
        assert "delete" in [action for _, action, _ in tenants.events()], "the control"
        root.post("/nodes/node1/gc")
        with tenants.store.read() as c:
            seen = c.scalar(sa.select(t.operations.c.id).where(t.operations.c.kind == "gc"))
        assert root.post("/nodes/node1/gc/apply", {"seen": seen}).status_code == 303
        assert root.post("/nodes/node1/gc/apply", {"seen": seen}).status_code == 409


def test_markup_and_tricks_are_text(tmp_path: Path) -> None:
    """Texts of users are shown unchanged, and do not reverse the direction of lines."""
    with Tenants(tmp_path) as tenants:
        alice = Browser(tenants, "alice")
        evil = "<script>alert(1)</script>\u202egnp"
        assert alice.post("/projects/lab/settings", {"description": evil}).status_code == 303
        text = alice.get("/projects/lab").text
        assert "<script>alert" not in text and "&lt;script&gt;" in text and "\u202e" not in text
        answer = alice.post("/projects/lab/members", {"user": "<i>erin</i>", "role": "member"})
        assert answer.status_code == 422 and "<i>" not in answer.text and 'value="&lt;i&gt;erin' in answer.text


def test_the_log_by_its_filters(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        root, carol = Browser(tenants, "root"), Browser(tenants, "carol")
        assert "exp" in root.get("/log?user=bob&action=create&project=lab").text.split("<tbody>")[1]
        assert "<tbody>" not in carol.get("/log?project=lab").text, "another project's"
        assert "<tbody>" not in root.get("/log?until=2020-01-01").text
        for path in ("/log?since=yesterday", "/log?before=x", "/log?before=" + "9" * 40):
            assert root.get(path).status_code == 422
        with tenants.store.write() as c:
            for _ in range(150):
                operations.note(c, "root", "many", utcnow())
        first = root.get("/log?action=many").text
        older = re.search(r'href="(/log\?before=[^"]+)"', first)
        assert older and first.count("<b>many</b>") == 100
        assert root.get(older[1].replace("&amp;", "&")).text.count("<b>many</b>") == 50


@pytest.mark.parametrize("path", ["/projects", "/quotas", "/people", "/requests", "/all-slices", "/log", "/operations"])
def test_queries_do_not_grow_with_rows(path: str, tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        root, counts = Browser(tenants, "root"), []
        said: list[str] = []
        sa.event.listen(tenants.store.engine, "before_cursor_execute", lambda *args: said.append(args[2]))
        for number in range(2):
            said.clear()
            assert root.get(path).status_code == 200
            counts.append(len(said))
            with tenants.store.write() as c:
                c.execute(
                    t.users.insert(), [{"name": f"u{i}", "admin": False, "created_at": utcnow()} for i in range(20)]
                ) if not number else None
            for i in range(0 if number else 8):
                projects.create(
                    tenants.store, tenants.config, {"name": f"p{i}", "pi": f"u{i}"}, tenants.principal("root")
                )
        assert counts[1] <= counts[0], said

"""slicectl for people, projects, credentials and requests, against the application behind a real socket."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bare_service import KEY
from tenants import OTHER_KEY, PASSWORD, Tenants
from werkzeug.serving import make_server

from slicemgr import cli

Run = Callable[..., tuple[int, str, str]]
NEW = "a quite different sentence"


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path / "service") as made:
        yield made


@pytest.fixture
def url(tenants: Tenants) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, tenants.app, threaded=True)
    server.daemon_threads = True  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run(
    url: str, tenants: Tenants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run slicectl as a tenant (`who`), or as the user of the client's file (None)."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))  # a running demo has its client.json there
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    (tmp_path / "key.pub").write_text(KEY)
    (tmp_path / "other.pub").write_text(OTHER_KEY)

    def run(who: str | None, *args: str, stdin: str = "") -> tuple[int, str, str]:
        for name, value in (("SLICEMGR_URL", url), ("SLICEMGR_TOKEN", tenants.found[who] if who else "")):
            monkeypatch.setenv(name, value) if who else monkeypatch.delenv(name, raising=False)
        (tmp_path / "stdin").write_text(stdin)
        with (tmp_path / "stdin").open() as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            status = cli.main(args)
        return status, *capsys.readouterr()

    return run


def test_from_the_invitation_to_a_slice_and_out_again(run: Run, url: str, tmp_path: Path) -> None:
    """A researcher's laptop: nothing but the link, the password, and the same verbs as on the node."""
    status, link, _ = run("root", "user", "invite", "grace", "--email", "grace@example.org")
    assert status == 0 and link.startswith(f"{url}/invitation/")
    assert run("root", "project", "add", "lab", "grace")[0] == 0
    assert run(None, "user", "accept", link.strip(), "--password-stdin", stdin=f"{NEW}\n")[0] == 0
    assert run(None, "user", "accept", link.strip(), "--password-stdin", stdin=f"{NEW}\n")[0] == 3
    status, _, err = run(None, "login", url, "--user", "grace", "--password-stdin", stdin="wrong\n")
    assert status == 5 and "is wrong" in err
    status, _, err = run(None, "list")
    assert status == 7 and "is not configured (sign in with `slicectl login URL`" in err
    status, out, err = run(None, "login", url, "--user", "grace", "--password-stdin", stdin=f"{NEW}\n")
    file = tmp_path / "home/.config/slicemgr/client.json"
    assert (status, out) == (0, "") and str(file) in err and NEW not in err
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(run(None, "user", "show", "-f", "json")[1])["projects"] == {"lab": "member"}
    assert run(None, "key", "add", str(tmp_path / "other.pub"))[0] == 0
    assert run(None, "create", "mine", "--type", "lxc", "--image", "debian-12", "--no-wait")[0] == 0
    assert [one["owner"] for one in json.loads(run(None, "list", "-f", "json")[1])] == ["bob", "grace"]
    status, _, err = run(None, "stop", "exp", "--no-wait")
    assert status == 5 and "of bob" in err
    token = json.loads(file.read_text())["token"]
    assert run(None, "logout")[0] == 0 and not file.exists()
    assert run(None, "logout")[0] == 3
    file.write_text(json.dumps({"url": url, "token": token}))
    assert run(None, "list")[0] == 5, "the token was revoked, not only forgotten"
    assert run(None, "logout")[0] == 0, "what opens nothing any more is forgotten all the same"


def test_login_keeps_the_identity_and_warns_of_variables(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "home/.config/slicemgr/client.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"url": "http://old", "token": "old", "identity": "/id"}))
    file.chmod(0o644)
    run("bob", "list")
    status, _, err = run("bob", "login", url, "--user", "bob", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert status == 0 and "SLICEMGR_URL is set" in err
    assert json.loads(file.read_text())["identity"] == "/id" and file.stat().st_mode & 0o777 == 0o600


def test_beyond_the_quota_and_granted(run: Run, tmp_path: Path) -> None:
    key = ("--ssh-key", str(tmp_path / "key.pub"))
    big = ("create", "big", "--type", "lxc", "--image", "debian-12", "--count", "9", "--project", "lab", *key)
    status, _, err = run("bob", *big)
    assert status == 5 and "--count: 9 slivers requested" in err and "reason" in err
    status, out, err = run("bob", *big, "--reason", "the paper")
    assert (status, out) == (0, "") and "waits for a decision" in err
    waiting = json.loads(run("alice", "request", "list", "--state", "waiting", "-f", "json")[1])
    assert {one["name"]: one["reason"] for one in waiting} == {"big": "the paper", "large": "a large experiment"}
    (id_,) = (one["id"] for one in waiting if one["name"] == "big")
    assert run("dave", "request", "show", id_)[0] == 3
    assert run("bob", "request", "grant", id_, "--no-wait")[0] == 5
    status, out, _ = run("alice", "request", "grant", id_, "--count", "2", "--reason", "two", "--no-wait", "-f", "json")
    assert status == 0 and json.loads(out)["state"] == "granted"
    assert len(json.loads(run("bob", "show", "big", "--project", "lab", "-f", "json")[1])["slivers"]) == 2
    assert run("alice", "request", "decline", id_, "--reason", "late")[0] == 4
    (other,) = (one["id"] for one in waiting if one["name"] == "large")
    assert run("bob", "request", "withdraw", other)[0] == 0


def test_a_resize_beyond_the_quota(run: Run) -> None:
    assert run("root", "project", "set", "lab", "--disk", "4G", "--ceiling-disk", "9G")[0] == 0
    more = ("resize", "lab/exp", "--disk", "6G", "--no-wait")
    status, _, err = run("bob", *more)
    assert status == 5 and "disk: " in err and "reason" in err
    status, out, err = run("bob", *more, "--reason", "data sets")
    assert (status, out) == (0, "") and "waits for a decision" in err
    waiting = json.loads(run("alice", "request", "list", "--state", "waiting", "-f", "json")[1])
    (id_,) = (one["id"] for one in waiting if one["action"] == "resize")
    assert "resize" in run("alice", "request", "show", id_)[1]
    assert run("alice", "request", "grant", id_, "--count", "2", "--no-wait")[0] == 2
    assert run("alice", "request", "grant", id_, "--disk", "5G", "--no-wait")[0] == 0
    (sliver,) = json.loads(run("bob", "show", "lab/exp", "-f", "json")[1])["slivers"]
    assert sliver["limits"]["disk"] == 5 << 30


def test_projects_and_people(run: Run) -> None:
    made = run("root", "project", "create", "new", "--pi", "erin", "--slices", "2", "--memory", "1G", "--lease", "none")
    assert made[0] == 0
    assert run("root", "project", "set", "new", "--ceiling-slices", "1")[0] == 2
    assert run("root", "project", "set", "new", "--slices", "many")[0] == 2
    assert run("root", "project", "set", "new", "--ceiling-slices", "none", "--description", "it is new")[0] == 0
    shown = json.loads(run("root", "project", "show", "new", "-f", "json")[1])
    assert (shown["quota"]["slices"], shown["quota"]["lease"], shown["ceiling"]["slices"]) == (2, None, None)
    table = run("root", "project", "show", "new")[1]
    assert "it is new; members: erin (pi)" in table and "1 GiB" in table
    assert "1 of 3" in run("bob", "project", "list", "-c", "name,slices")[1]
    assert run("root", "project", "remove", "new", "erin")[0] == 0
    assert run("root", "project", "delete", "new")[0] == 0
    assert run("root", "user", "disable", "bob")[0] == 0
    assert run("bob", "list")[0] == 5
    assert run("root", "user", "enable", "bob")[0] == 0
    assert run("bob", "user", "set", "bob", "--full-name", "Bob B.")[0] == 0
    assert run("bob", "user", "set", "bob", "--admin")[0] == 5
    assert "Bob B." in run("dave", "user", "list")[1]
    assert run("root", "user", "link", "bob", "-f", "json")[0] == 0


def test_tokens_keys_and_sessions(run: Run, tenants: Tenants, tmp_path: Path) -> None:
    status, token, _ = run("bob", "token", "create", "script", "--scope", "read", "--expires", "1d")
    assert status == 0 and token.strip().startswith("smgr_")
    shown = json.loads(run("bob", "token", "list", "-f", "json")[1])
    (id_,) = (one["id"] for one in shown if one["label"] == "script")
    tenants.found["script"] = token.strip()
    assert run("script", "project", "list")[0] == 0
    assert run("script", "key", "add", str(tmp_path / "other.pub"))[0] == 5
    assert run("bob", "token", "revoke", id_)[0] == 0
    assert run("script", "list")[0] == 5
    assert run("bob", "key", "add", str(tmp_path / "key.pub"))[0] == 4
    assert run("bob", "key", "add", "/etc/passwd")[0] == 2
    (key,) = json.loads(run("bob", "key", "list", "-f", "json")[1])
    assert run("dave", "key", "remove", key["id"])[0] == 3
    assert run("bob", "key", "remove", key["id"])[0] == 0
    (session,) = json.loads(run("root", "session", "list", "--user", "bob", "-f", "json")[1])
    assert run("root", "session", "revoke", session["id"])[0] == 0


def test_invitations_to_projects(run: Run) -> None:
    """A PI's `add` invites; the account joins by the project's name or the invitation's id, or declines."""

    def rows(who: str, *words: str) -> list[dict[str, str]]:
        status, out, err = run(who, "project", *words, "-f", "json")
        assert status == 0, err
        return list(json.loads(out))

    status, out, err = run("alice", "project", "add", "lab", "carol")
    assert status == 0 and "lab" in out and "carol was invited" in err
    shown = json.loads(run("alice", "project", "show", "lab", "-f", "json")[1])
    assert "carol" not in [one["user"] for one in shown["members"]]
    (mine,) = rows("carol", "invitations")
    assert (mine["project"], mine["invited_by"]) == ("lab", "alice")
    assert run("carol", "project", "accept", "hollow")[0] == 3
    assert run("carol", "project", "accept", "lab")[0] == 0
    assert run("carol", "project", "accept", mine["id"])[0] == 3
    assert json.loads(run("carol", "user", "show", "-f", "json")[1])["default_project"] == "rival"
    assert run("carol", "user", "set", "carol", "--default-project", "lab")[0] == 0
    assert run("root", "user", "set", "carol", "--default-project", "rival")[0] == 5
    assert run("alice", "project", "invite", "hollow", "carol@example.org")[0] == 0
    assert run("alice", "project", "invite", "hollow", "carol", "--role", "pi")[0] == 5
    assert run("alice", "project", "invite", "hollow", "carol")[0] == 0
    assert run("carol", "project", "decline", "hollow")[0] == 0 and rows("carol", "invitations") == []
    sent = rows("alice", "invitations", "hollow")
    assert [one["invitee"] for one in sent] == ["carol@example.org", "carol"]
    assert run("alice", "project", "withdraw", "hollow", *(one["id"] for one in sent))[0] == 0
    assert rows("alice", "invitations", "hollow") == []
    assert run("bob", "project", "invitations", "lab")[0] == 5


def test_which_project_is_meant(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By option or variable; one command's choice is not the next one's."""
    assert run("root", "show", "exp")[0] == 3
    assert run("root", "show", "exp", "--project", "lab")[0] == 0
    assert run("root", "show", "exp")[0] == 3
    monkeypatch.setenv("SLICEMGR_PROJECT", "lab")
    assert run("root", "show", "exp")[0] == 0
    assert [one["name"] for one in json.loads(run("root", "list", "-f", "json")[1])] == ["exp"]
    monkeypatch.setenv("SLICEMGR_PROJECT", "rival")
    assert json.loads(run("root", "list", "-f", "json")[1]) == []
    assert run("root", "image", "publish", "lab-image")[0] == 0


def test_leases_of_a_project_and_the_clock(run: Run, tenants: Tenants) -> None:
    def rules(who: str, *words: str) -> dict[str, object]:
        status, out, err = run(who, "project", "lease", "lab", *words, "-f", "json")
        assert status == 0, err
        return dict(json.loads(out))

    assert rules("bob")["own"] == []
    assert rules("alice", "--default", "2d", "--reminders", "6h,1h")["reminders"] == [21600, 3600]
    assert rules("alice", "--default", "node", "--reminders", "none")["own"] == ["reminders"]
    assert rules("root", "--window", "1d", "--exempt")["exempt"] is True
    status, _, err = run("alice", "project", "lease", "lab", "--window", "0s")
    assert status == 5 and "alice may not" in err
    table = run("bob", "project", "lease", "lab")[1]
    assert "none" in table and "1 day" in table and "yes" in table
    assert run("root", "project", "lease", "lab", "--no-exempt", "--window", "node")[0] == 0
    assert json.loads(run("bob", "clock", "show", "-f", "json")[1])["doubt"] is None
    assert run("bob", "clock", "confirm")[0] == 5
    assert run("root", "clock", "confirm")[0] == 0
    status, out, err = run("bob", "renew", "exp", "--lease", "99d", "--project", "lab", "-f", "json")
    assert status == 0 and "30d is the longest" in err and json.loads(out)["trimmed"] in err


def test_show_says_what_a_lease_and_a_sliver_have_to_say(run: Run, tenants: Tenants) -> None:
    with tenants.store.write() as c:
        c.exec_driver_sql("UPDATE slices SET lease_notice = 'its lease ends soon'")
        c.exec_driver_sql("UPDATE slivers SET keys_missing = 'keys come later'")
    out = run("bob", "show", "exp", "--project", "lab")[1]
    assert "its lease ends soon" in out and "sliver 0: keys come later" in out

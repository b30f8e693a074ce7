"""slicectl bench publish, published, unpublish, against the application behind a real socket; the client's methods."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import published
import pytest
from tenants import Tenants
from test_cli_people import Run, run, tenants, url

from slicemgr.bench.frame import collection, publish
from slicemgr.client import Client
from slicemgr.errors import Refused

__all__ = ["run", "tenants", "url"]  # fixtures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run, with all files of a run."""
    made = published.write(tmp_path / "scale-1")
    (made / "steps.jsonl").write_text("{}\n")
    (made / "lock").touch()
    (made / "more").mkdir()
    (made / "secret.png").symlink_to("/etc/passwd")
    return made


def listed(run: Run, who: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(who, "bench", "published", "-f", "json")[1])
    return found


def test_from_a_folder_to_everybody_and_back(run: Run, tenants: Tenants, folder: Path) -> None:
    status, out, _ = run("root", "bench", "publish", str(folder), "--hidden", "-f", "json")
    made = json.loads(out)
    assert (status, made["name"], made["public"], made["kind"]) == (0, "scale-1", False, "scale")
    assert [one["name"] for one in made["files"]] == [
        "report.html",
        *sorted(set(published.content()) - {"report.html"}),
    ]
    assert made["id"] not in [one["id"] for one in listed(run, "bob")]
    assert run("bob", "bench", "published", made["id"])[0] == 3
    os.utime(folder / "report.html", (1, 1))
    status, out, _ = run("root", "bench", "publish", str(folder), "--note", "Idle.", "-f", "json")
    assert status == 0 and json.loads(out) == {**made, "public": True, "note": "Idle."}, "the same report is the same"
    assert listed(run, "bob")[0] == listed(run, "root")[0] == json.loads(out)
    status, out, _ = run("bob", "bench", "published", made["id"])
    assert status == 0 and "scale-1" in out and "200 containers" in out
    assert [one["id"] for one in json.loads(run("bob", "bench", "published", "--kind", "io", "-f", "json")[1])] == []
    assert run("root", "bench", "unpublish", made["id"])[0] == 0
    assert run("bob", "bench", "published", made["id"])[0] == 3 and len(listed(run, "root")) == 2
    assert run("root", "bench", "unpublish", "--delete", made["id"], "none")[0] == 1, "one of them is not there"
    assert [one["id"] for one in listed(run, "root")] == [tenants.found["experiment"]] and folder.is_dir()


def test_the_folder_of_all_experiments(run: Run, tmp_path: Path) -> None:
    """Each report is published; one that is incomplete does not stop the others."""
    parts = [collection.Part(name, []) for name in ("scale", "io", "peers")]
    collection.Collection(tmp_path, parts).write()
    assert run("root", "bench", "publish", str(tmp_path))[0] == 2, "none has begun"
    published.write(tmp_path / "scale")
    (published.write(tmp_path / "io", published.content(experiment="io")) / "report.html").unlink()
    status, out, err = run("root", "bench", "publish", str(tmp_path), "--name", "All", "--note", "idle", "-f", "json")
    assert status == 1 and "io has no report.html" in err
    (made,) = json.loads(out)
    assert (made["name"], made["note"]) == ("All scale", "idle")
    published.write(tmp_path / "io", published.content(experiment="io"))
    status, out, _ = run("root", "bench", "publish", str(tmp_path), "--name", "All", "-f", "json")
    again, other = json.loads(out)
    assert status == 0 and again == made and (other["name"], other["kind"]) == ("All io", "io")


def test_who_is_no_admin_may_not(run: Run, tenants: Tenants, folder: Path) -> None:
    status, _, err = run("bob", "bench", "publish", str(folder))
    assert status == 5 and "bob may not publish" in err
    for words in (["unpublish"], ["unpublish", "--delete"]):
        assert run("bob", "bench", *words, tenants.found["experiment"])[0] == 5
    assert len(listed(run, "bob")) == 1


@pytest.mark.parametrize(
    ("without", "told"),
    [("report.html", "slicectl bench report"), ("run.json", "is no run"), ("", "does not exist")],
)
def test_a_folder_without_a_report_says_how_to_make_it(run: Run, folder: Path, without: str, told: str) -> None:
    if without:
        (folder / without).unlink()
    status, _, err = run("root", "bench", "publish", str(folder if without else folder / "none"))
    assert status == 2 and "FOLDER" in err and told in err and str(folder) in err
    assert len(listed(run, "root")) == 1


def test_what_is_no_folder_of_a_run(folder: Path) -> None:
    with pytest.raises(Refused, match="is not a folder"):
        publish.files_of(folder / "run.json")
    (folder / "run.json").write_text('{"experiment": "scale"}')
    with pytest.raises(Refused, match="outcome: is missing"):
        publish.files_of(folder)
    published.write(folder)
    for number in range(60):
        (folder / f"{number}.png").touch()
    with pytest.raises(Refused, match="at most 64"):
        publish.files_of(folder)


def test_only_the_reports_own_files_are_sent(folder: Path) -> None:
    """No link is followed to another file."""
    with publish.archive(folder) as (packed, size), tarfile.open(fileobj=packed) as tar:
        members = tar.getmembers()
    assert {one.name for one in members} == set(published.content()) and size > 0
    assert {(one.uid, one.uname, one.mtime) for one in members} == {(0, "", 0)}


def test_the_clients_methods(tenants: Tenants, url: str, folder: Path) -> None:
    with Client(url, tenants.found["root"]) as client, publish.archive(folder) as (packed, size):
        made = client.experiments.publish(packed, size, name="Mine", public=False)
        assert client.experiments.get(made["id"]) == made == client.experiments.list()[0]
        assert client.experiments.file(made["id"], "report.html") == published.REPORT.encode()
        with pytest.raises(Refused, match="no file"):
            client.experiments.file(made["id"], "none.png")
        with pytest.raises(Refused, match="is not a valid name"):
            client.experiments.file(made["id"], "../x")
        assert client.experiments.change(made["id"], public=True)["public"] is True
        assert client.experiments.list(kind="scale", since="2999-01-01T00:00:00Z") == []
        client.experiments.delete(made["id"])
        assert len(client.experiments.list()) == 1

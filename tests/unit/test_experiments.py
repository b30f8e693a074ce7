"""Published experiments over REST: accepted and refused archives, visibility, and cleanup."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import published
import pytest
from bare_service import Service
from flask.testing import FlaskClient
from published import content, packed

from slicemgr.config import Size, WebConfig
from slicemgr.policy import experiment_summary, experiments
from slicemgr.service.experiments import files as report_files
from slicemgr.service.experiments import publications

pytestmark = pytest.mark.usefixtures("each_store")

API = "/api/v1/experiments"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, web=WebConfig(max_report=Size(2 << 20))) as made:
        yield made


@pytest.fixture
def client(service: Service) -> FlaskClient:
    made = service.app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
    return made


def folders(service: Service) -> list[str]:
    return sorted(path.name for path in service.config.experiments_dir.iterdir())


def test_from_an_archive_to_its_files_and_away(service: Service, client: FlaskClient) -> None:
    answer = client.post(f"{API}?name=First%20run&note=Idle.", data=packed())
    assert answer.status_code == 201
    made = answer.get_json()
    assert (made["name"], made["note"], made["kind"], made["node"]) == ("First run", "Idle.", "scale", "node1")
    assert made["summary"] == "200 containers take 4.9 MiB each." and made["public"] is True
    assert made["started_at"] == "2026-01-31T12:00:00Z" and made["published_by"] == "admin"
    assert {one["name"]: one["size"] for one in made["files"]} == {name: len(one) for name, one in content().items()}
    assert made["files"][0] == {"name": "report.html", "size": len(published.REPORT), "type": "text/html"}
    assert made["size"] == sum(map(len, content().values()))
    for name, data in content().items():
        file = client.get(f"{API}/{made['id']}/files/{name}")
        assert (file.status_code, file.data, file.mimetype) == (200, data, experiments.media_type(name))
        file.close()
    assert client.get(API).get_json() == {"experiments": [made]}
    changed = client.patch(f"{API}/{made['id']}", json={"name": "Scale", "note": "", "public": False}).get_json()
    assert changed == {**made, "name": "Scale", "note": None, "public": False}
    assert client.patch(f"{API}/{made['id']}", json={"public": False}).get_json() == changed
    assert client.delete(f"{API}/{made['id']}").get_json() == {"deleted": made["id"]}
    assert client.get(f"{API}/{made['id']}").status_code == 404
    assert folders(service) == [] and list(service.config.uploads_dir.iterdir()) == []
    told = client.get("/api/v1/events").get_json()["events"]
    actions = [f"experiment {one}" for one in ("delete", "change", "hide", "publish")]
    assert [one["action"] for one in told] == actions and all(made["id"] in one["detail"] for one in told)


def test_the_same_archive_again_is_the_same_experiment(service: Service, client: FlaskClient) -> None:
    first = client.post(f"{API}?public=false", data=packed())
    again = client.post(f"{API}?name=other", data=packed())
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.get_json() == again.get_json() and first.get_json()["name"] == "scale"
    assert folders(service) == [first.get_json()["id"]]
    other = client.post(API, data=packed(content(outcome="Another.")))
    assert other.status_code == 201 and len(folders(service)) == 2


def member(name: str, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    for key, value in attributes.items():
        setattr(made, key, value)
    return made, b"x" * made.size


def without(name: str) -> dict[str, bytes]:
    return {key: data for key, data in content().items() if key != name}


def many(count: int) -> dict[str, bytes]:
    return {**content(), **{f"p{number}.png": b"" for number in range(count)}}


def cut(archive: bytes) -> bytes:
    """Within its last file."""
    return archive[: archive.rindex(b"x" * 9000) + 100]


def huge(name: str) -> bytes:
    """The header of a member with a declared size of 4 GiB."""
    made = tarfile.TarInfo(name)
    made.size = 1 << 32
    return made.tobuf(tarfile.PAX_FORMAT)


EVIL: dict[str, Callable[[], bytes]] = {
    "a way out": lambda: packed(more=[member("../evil.png", size=1)]),
    "an absolute name": lambda: packed(more=[member("/tmp/evil.png", size=1)]),
    "a folder": lambda: packed(more=[member("more/evil.png", size=1)]),
    "a name that hides": lambda: packed(more=[member(".evil.png", size=1)]),
    "a script": lambda: packed(more=[member("evil.js", size=1)]),
    "a second page": lambda: packed(more=[member("evil.html", size=1)]),
    "a link": lambda: packed(more=[member("evil.png", type=tarfile.SYMTYPE, linkname="/etc/passwd")]),
    "a hard link": lambda: packed(more=[member("evil.png", type=tarfile.LNKTYPE, linkname="run.json")]),
    "a device": lambda: packed(more=[member("evil.png", type=tarfile.CHRTYPE, devmajor=1, devminor=3)]),
    "a file twice": lambda: packed(more=[member("run.json", size=1)]),
    "holes": lambda: packed(more=[member("evil.png", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"})]),
    "no report": lambda: packed(without("report.html")),
    "no run": lambda: packed(without("run.json")),
    "too many files": lambda: packed(many(experiments.MOST_FILES)),
    "a cut": lambda: cut(packed(more=[member("cut.png", size=9000)])),
    "a size that is not there": lambda: packed(more=[member("evil.png", size=1)])[:-11264] + huge("evil.png"),
    "not a tar": lambda: b"PK\3\4 a zip",
    "packed": lambda: b"\x1f\x8b\x08\x00" + bytes(600),
    "nothing": lambda: b"",
    "too much": lambda: packed({**content(), "large.png": bytes((2 << 20) + 1)}),
}
WRONG_RUN: dict[str, dict[str, Any]] = {
    "experiment": {"experiment": None},
    "another experiment": {"experiment": "../x"},
    "outcome": {"outcome": None},
    "an empty outcome": {"outcome": " \n "},
    "no text": {"outcome": ["x"]},
    "half a character": {"outcome": "\ud800"},
    "a control character": {"outcome": "a\0b"},
    "started": {"started": "yesterday"},
    "a number": {"started": [1]},
}


@pytest.mark.parametrize("what", [*EVIL, *WRONG_RUN])
def test_what_is_no_report_is_refused_and_leaves_nothing(service: Service, client: FlaskClient, what: str) -> None:
    data = EVIL[what]() if what in EVIL else packed(content(**WRONG_RUN[what]))
    answer = client.post(API, data=data)
    assert answer.status_code == 422, answer.text
    body = json.loads(answer.data)
    assert body["field"] in (("file", "Content-Length") if what in EVIL else ("run.json", "outcome")) and body["detail"]
    assert folders(service) == [] and list(service.config.uploads_dir.iterdir()) == []
    assert service.count("experiments") == 0
    assert not list(service.config.node.state_dir.rglob("*evil*"))


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (experiments.LARGEST_RUN + 1)])
def test_a_run_that_is_none(service: Service, client: FlaskClient, data: bytes) -> None:
    answer = client.post(API, data=packed({**content(), "run.json": data}))
    assert answer.status_code == 422 and json.loads(answer.data)["field"] in ("run.json", "file")
    assert folders(service) == []


def test_without_the_look_at_names_a_file_would_get_out(
    service: Service, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(experiments, "fits", lambda name: True)
    client.post(API, data=packed(more=[member("../evil.png", size=1)]))
    assert (service.config.experiments_dir / "evil.png").exists()


def test_what_came_out_is_told_by_the_report_where_the_run_has_a_word(client: FlaskClient) -> None:
    """The node can be an object; long texts are truncated."""
    page = "<!doctype html><style>p { color: red }</style><h1>Scale</h1><p class='lead outcome'>It <b>holds</b>\n"
    told = published.content(f"{page}200 &lt; 1000.</p><p>More.</p>", outcome="done", node={"name": "n2", "cpus": 2})
    made = client.post(API, data=packed(told)).get_json()
    assert (made["summary"], made["node"]) == ("It holds 200 < 1000.", "n2")
    assert client.post(API, data=packed(content("<p>x", outcome="done"))).get_json()["summary"] == "done"
    cut_ = client.post(API, data=packed(content(outcome="too long " * 1000, node=None, parameters=None))).get_json()
    assert len(cut_["summary"]) == 4000 and cut_["summary"].endswith("…") and cut_["node"] is None


@pytest.mark.parametrize(
    "report", [b"", b"\xff\0", b"<p class=outcome>" * 1000, b"<" * 100_000, b"<p class=outcome>open"]
)
def test_a_summary_is_looked_for_in_anything(report: bytes) -> None:
    assert experiment_summary.of(report) in ("", "open")


def test_an_archive_as_tar_makes_it_of_a_folder(client: FlaskClient) -> None:
    """With the folder itself, and names that begin with `./`."""
    files = {f"./{name}": data for name, data in content().items()}
    folder = member("./", type=tarfile.DIRTYPE)
    answer = client.post(API, data=packed({}, [folder])[:512] + packed(files))
    assert answer.status_code == 201
    assert {one["name"] for one in answer.get_json()["files"]} == set(content())


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "?name=" + "x" * 101, None, "name"),
        ("POST", "?public=maybe", None, "public"),
        ("POST", "?note=%01", None, "note"),
        ("POST", "?nmae=x", None, "nmae"),
        ("PATCH", "/ID", {"public": "yes"}, "public"),
        ("PATCH", "/ID", {"name": ""}, "name"),
        ("PATCH", "/ID", {"name": 7}, "name"),
        ("PATCH", "/ID", {"note": "x" * 2001}, "note"),
        ("PATCH", "/ID", {"kind": "x"}, "kind"),
        ("GET", "?kind=" + "x" * 300, None, "kind"),
    ],
)
def test_a_wrong_field_is_named(client: FlaskClient, method: str, path: str, body: Any, field: str) -> None:
    made = client.post(API, data=packed()).get_json()
    data = packed(content(outcome="Another.")) if method == "POST" else None
    answer = client.open(API + path.replace("ID", made["id"]), method=method, json=body, data=data)
    assert (answer.status_code, json.loads(answer.data)["field"]) == (422, field)
    assert client.get(API).get_json() == {"experiments": [made]}


@pytest.mark.parametrize("name", ["run.txt", "..%2f..%2fdb%2fslicemgr.db", "%2e%2e", "report.html%00", "memory.svg"])
def test_no_other_file_is_given_out(client: FlaskClient, name: str) -> None:
    made = client.post(API, data=packed()).get_json()
    assert client.get(f"{API}/{made['id']}/files/{name}").status_code in (404, 422)


def test_files_that_are_gone_are_not_there(service: Service, client: FlaskClient) -> None:
    made = client.post(API, data=packed()).get_json()
    report_files.remove(report_files.place(service.config, made["id"]))
    assert client.get(f"{API}/{made['id']}/files/report.html").status_code == 404
    assert client.delete(f"{API}/{made['id']}").status_code == 200


def test_a_row_that_cannot_be_written_leaves_no_files(
    service: Service, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(publications, "_note", broken)
    client.application.config["PROPAGATE_EXCEPTIONS"] = False
    assert client.post(API, data=packed()).status_code == 500
    assert folders(service) == [] and service.count("experiments") == 0


def test_what_a_killed_process_left_is_swept(service: Service, client: FlaskClient) -> None:
    made = client.post(API, data=packed()).get_json()
    for name in (".arriving-x", "0123"):
        published.write(service.config.experiments_dir / name)
    assert len(publications.sweep(service.store, service.config)) == 2
    assert folders(service) == [made["id"]]


def test_they_are_narrowed(service: Service, client: FlaskClient) -> None:
    for kind, node in (("scale", "node1"), ("io", "node2")):
        assert client.post(API, data=packed(content(experiment=kind, node=node))).status_code == 201

    def kinds(query: str) -> list[str]:
        return [one["kind"] for one in client.get(f"{API}?{query}").get_json()["experiments"]]

    assert kinds("") == ["io", "scale"] and kinds("kind=io") == ["io"] and kinds("node=node1") == ["scale"]
    assert kinds("since=2999-01-01T00:00:00Z") == kinds("until=2000-01-01T00:00:00Z") == []

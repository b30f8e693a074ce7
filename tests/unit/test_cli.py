"""slicectl against the service as it runs, in gunicorn and without root: formats, exit statuses, what it imports."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from bare_service import KEY, config_in, empty_database, service, store_table

from slicemgr import cli
from slicemgr import config as configs
from slicemgr.cli import shared
from slicemgr.client import Client
from slicemgr.errors import SlicemgrError
from slicemgr.web import server

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def url_and_token(each_store: str) -> Iterator[tuple[str, str, Path]]:
    """A service with node1 and the image `debian`, but no agent."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        directory = Path(name)
        directory.chmod(0o755)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        path = directory / "slicemgr.toml"
        text = f'[node]\nstate_dir = "{name}/state"\nrun_dir = "{name}/run"\npool = "{name}/pool"\n'
        planned = config_in(directory)
        empty_database(planned)
        path.write_text(f'{text}[web]\nport = {port}\nuser = "65534:65534"\n{store_table(planned)}')
        command = [sys.executable, "-c", "from slicemgr.main import main; main()", "--config", str(path)]
        subprocess.run([*command, "init"], check=True, timeout=60, capture_output=True)
        config = configs.load(path)
        with service(config):
            pass
        server.make_directories(config)
        settings = json.loads((directory / "run/client.json").read_text())
        with subprocess.Popen([*command, "web"], stderr=subprocess.DEVNULL) as web:
            try:
                _wait(settings["url"], settings["token"])
                yield settings["url"], settings["token"], directory
            finally:
                web.terminate()


def _wait(url: str, token: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            with Client(url, token) as client:
                client.slices.list()
            return
        except SlicemgrError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@pytest.fixture
def run(
    url_and_token: tuple[str, str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run slicectl in this process: exit status, stdout, stderr."""
    url, token, _ = url_and_token
    monkeypatch.setenv("SLICEMGR_URL", url)
    monkeypatch.setenv("SLICEMGR_TOKEN", token)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    (tmp_path / "key.pub").write_text(KEY)

    def run(*args: str) -> tuple[int, str, str]:
        status = cli.main(args)
        return status, *capsys.readouterr()

    return run


def create(run: Run, tmp_path: Path, name: str, *more: str) -> tuple[int, str, str]:
    given = ("--type", "lxc", "--image", "debian-12", "--ssh-key", str(tmp_path / "key.pub"), "--no-wait")
    return run("create", *given, *more, "--", name)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        *(("exp", ("exp", 0)), ("exp/2", ("exp", 2)), ("lab/exp", ("lab/exp", 0)), ("lab/exp/2", ("lab/exp", 2))),
        *(("lab/7/0", ("lab/7", 0)), ("lab/exp/x", None), ("a/b/c/1", None), ("lab/exp/99999", None)),
    ],
)
def test_the_name_of_a_sliver(target: str, found: tuple[str, int] | None) -> None:
    if found is None:
        with pytest.raises(SlicemgrError, match="is not the name of a sliver"):
            shared.sliver_name(target)
    else:
        assert shared.sliver_name(target) == found


def test_images_on_nodes(run: Run) -> None:
    """One line for each node that has something of an image; the other columns stay as they were."""
    plain = run("image", "list", "-f", "csv")[1]
    assert plain.splitlines()[0].split(",")[:3] == ["name", "state", "format"]
    assert run("image", "list", "--nodes", "-f", "json") == (0, "[]\n", "")
    assert run("image", "list", "--nodes")[1].split()[:5] == ["NAME", "NODE", "STATE", "DISK", "BASE"]
    assert run("image", "list", "--nodes", "-c", "name,node,error")[1].split()[:3] == ["NAME", "NODE", "ERROR"]
    for wrong in (("-c", "node"), ("--nodes", "-c", "format")):
        status, _, error = run("image", "list", *wrong)
        assert status == 2 and f"there is no column '{wrong[-1]}' here" in error
    status, out, _ = run("image", "push", "debian-12", "--node", "node1", "--no-wait")
    assert (status, out) == (0, "")
    assert json.loads(run("op", "list", "-f", "json")[1])[0]["kind"] == "image-push"
    assert run("image", "push", "debian-12", "--node", "nowhere", "--no-wait")[0] != 0


def test_formats(run: Run, tmp_path: Path) -> None:
    assert create(run, tmp_path, "fmt", "--count", "2")[0] == 0
    shown = json.loads(run("show", "fmt", "-f", "json")[1])
    assert yaml.safe_load(run("show", "fmt", "-f", "yaml")[1]) == shown
    rows = list(csv.DictReader(io.StringIO(run("show", "fmt", "-f", "csv")[1])))
    assert [row["index"] for row in rows] == ["0", "1"]
    assert rows[0]["memory"] == str(shown["slivers"][0]["limits"]["memory"])
    table, compact = (run("list", "-f", one)[1].splitlines() for one in ("table", "compact"))
    assert table[0].split()[:2] == ["NAME", "TYPE"] and set(table[1]) == {"-", " "}
    assert len(compact) == len(table) - 1
    assert run("list", "-f", "compact", "--no-header", "-c", "name,type")[1].split()[:2] == ["fmt", "lxc"]
    assert json.loads(run("list", "-f", "json", "-c", "name")[1]) == [{"name": "fmt"}]


@pytest.mark.parametrize(
    ("more", "name", "message"),
    [
        ((), "../x", "is not a valid slice name"),
        ((), "a b", "is not a valid slice name"),
        ((), "-rf", "is not a valid slice name"),
        ((), "", ": is empty"),
        ((), "a\n", "is not a valid slice name"),
        ((), "a" * 64, ": 64 characters are too many"),
        (("--type", "vm"), "x", "type: 'vm' is unknown"),
        (("--image", "nope"), "x", "image: there is no image 'nope'"),
        (("--node", "nope"), "x", "node: 'nope' is unknown"),
        (("--count", "0"), "x", "count: 0 is out of range"),
        (("--count", "many"), "x", "--count: "),
        (("--memory", "-5"), "x", "memory: -5 is negative"),
        (("--disk", "much"), "x", "disk: 'much' is not a size"),
        (("--lease", "0d"), "x", "lease: must be greater than zero"),
        (("--ports", "100000"), "x", "ports: 100000 is out of range"),
        (("--ssh-key", "/dev/null"), "x", "/dev/null is empty"),
        (("--ssh-key", "/nope"), "x", "--ssh-key: cannot read /nope"),
        (("--ssh-key", "/etc/passwd"), "x", "/etc/passwd is not a public key"),
        (("--timeout", "-1"), "x", "--timeout: "),
        (("-c", "nope"), "x", "unknown column 'nope'; the columns are "),
        (("-f", "xml"), "x", "--format"),
    ],
)
def test_bad_input_is_exit_2(run: Run, tmp_path: Path, more: tuple[str, ...], name: str, message: str) -> None:
    before = run("list", "-f", "json")
    status, out, err = create(run, tmp_path, name, *more)
    assert (status, out) == (2, "")
    assert err.startswith("slicectl: ") and message in err and err.count("\n") == 1
    assert run("list", "-f", "json") == before


def test_a_private_key_is_not_even_sent(run: Run, tmp_path: Path) -> None:
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")
    status, _, err = create(run, tmp_path, "x", "--ssh-key", str(tmp_path / "id"))
    assert status == 2 and "is a private key" in err and "secret" not in err


def test_exit_statuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list")[0] == 0
    assert run("nonsense")[0] == 2
    assert run("show", "nope")[0] == 3
    assert create(run, tmp_path, "codes")[0] == 0
    assert create(run, tmp_path, "codes")[0] == 4
    assert create(run, tmp_path, "large", "--memory", "100G")[0] == 5
    operation = json.loads(run("op", "list", "--slice", "codes", "-f", "json")[1])[0]["id"]
    assert run("op", "wait", operation, "--timeout", "0.1s")[0] == 6
    status, _, err = run("delete", "--no-wait", "codes", "nope")
    assert status == 1 and "nope: there is no slice 'nope'" in err
    assert json.loads(run("show", "codes", "-f", "json")[1])["state"] == "deleting"
    monkeypatch.setenv("SLICEMGR_TOKEN", "wrong")
    assert run("list")[0] == 5
    monkeypatch.setenv("SLICEMGR_URL", "http://127.0.0.1:1")
    status, _, err = run("list")
    assert status == 7 and "cannot reach http://127.0.0.1:1" in err


def test_an_upload_over_a_line_that_breaks_leaves_nothing(url_and_token: tuple[str, str, Path]) -> None:
    url, token, directory = url_and_token
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as line:
        head = f"POST /api/v1/images?name=cut&format=raw HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        line.sendall(f"{head}Content-Length: 100\r\n\r\nhalf".encode())
        line.shutdown(socket.SHUT_WR)
        assert b" 400 " in line.recv(4096).splitlines()[0]
    assert list((directory / "state/uploads").iterdir()) == []


def test_a_list_imports_little(url_and_token: tuple[str, str, Path]) -> None:
    url, token, _ = url_and_token
    code = "import sys; from slicemgr.cli import main; status = main(['list'])\n"
    code += "print(*sys.modules, file=sys.stderr); sys.exit(status)"
    environ = {**os.environ, "SLICEMGR_URL": url, "SLICEMGR_TOKEN": token}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0
    loaded = set(found.stderr.split())
    assert "slicemgr.client" in loaded
    assert not loaded & {"rich", "yaml", "sqlalchemy", "flask", "libvirt", "cryptography"}


def test_lists_are_narrowed(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "k.pub"
    key.write_text(KEY)
    assert run("create", "narrow", "--type", "lxc", "--image", "debian-12", "--ssh-key", str(key), "--no-wait")[0] == 0
    names = ("-f", "csv", "--no-header", "-c")
    assert run("list", "--prefix", "narr", "--owner", "admin", *names, "name") == (0, "narrow\n", "")
    assert run("list", "--owner", "nobody", *names, "name") == (0, "", "")
    since = ("--since", "1h", "--user", "admin", *names)
    assert "narrow" in run("op", "list", *since, "slice")[1]
    assert "narrow" in run("event", "list", "--action", "create", *since, "slice")[1]
    assert run("op", "list", "--until", "2020-01-31", *names, "id") == (0, "", "")
    status, _, told = run("event", "list", "--since", "soon")
    assert status == 2 and "--since" in told and "2h (ago)" in told
    assert run("delete", "narrow", "--no-wait")[0] == 0


# These leave slices that are never deleted, because there is no agent.


def test_the_type_alone_creates_a_slice(run: Run, tmp_path: Path) -> None:
    status, out, err = run("create", "--type", "lxc", "--ssh-key", str(tmp_path / "key.pub"), "--no-wait", "-f", "json")
    assert status == 0, err
    name = json.loads(out)["name"]
    assert name.startswith("lxc-") and f"the name of the slice is {name}" in err
    assert run("delete", name, "--no-wait")[0] == 0


def test_a_slice_is_named_as_the_list_names_it(run: Run, tmp_path: Path) -> None:
    assert create(run, tmp_path, "default/named")[0] == 0
    (row,) = [line.split() for line in run("list", "-f", "compact", "--no-header")[1].splitlines() if "named" in line]
    assert "default" in row
    assert json.loads(run("show", "default/named", "-f", "json")[1])["project"] == "default"
    assert run("show", "nowhere/named")[0] == 3
    assert run("show", "--project", "nowhere", "default/named")[0] == 0
    assert run("delete", "default/named", "--no-wait")[0] == 0

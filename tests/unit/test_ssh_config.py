"""slicectl ssh-config: what ssh itself and a YAML parser read of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from canned_service import HOST_KEY, Canned, slice, sliver

from slicemgr import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def canned() -> Iterator[Canned]:
    with Canned() as service:
        service.on("GET /slices/exp", slice(project="lab", slivers=[sliver(), at(1, 10020)]))
        yield service


@pytest.fixture
def run(canned: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("SLICEMGR_URL", canned.url)
    monkeypatch.setenv("SLICEMGR_TOKEN", "t")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "100% cache"))

    def run(*args: str) -> tuple[int, str, str]:
        return cli.main(("ssh-config", *args)), *capsys.readouterr()

    return run


def at(index: int, port: int, host_key: str | None = HOST_KEY) -> dict[str, object]:
    return sliver(index, ssh={"host": "127.0.0.1", "port": port, "fingerprint": None, "host_key": host_key})


def resolved(file: Path, name: str) -> set[str]:
    """What ssh makes of the configuration for a host."""
    program = shutil.which("ssh")
    assert program is not None
    words = [program, "-G", "-F", str(file), name]
    return {*subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()}


def test_ssh_reads_the_entries(run: Run, tmp_path: Path) -> None:
    status, out, err = run("exp", "-i", "my key")
    assert (status, err) == (0, "")
    file = tmp_path / "config"
    file.write_text(out)
    for name, port in (("exp-0", 10000), ("exp-1", 10020), ("lab.exp-1", 10020)):
        found = resolved(file, name)
        assert {"hostname 127.0.0.1", f"port {port}", "user root", "stricthostkeychecking true"} <= found
        assert {"identitiesonly yes", "checkhostip no", f"identityfile {Path('my key').absolute()}"} <= found
        known = tmp_path / f"100% cache/slicemgr/known_hosts/127.0.0.1-{port}"
        assert f"userknownhostsfile {known}" in found or f'userknownhostsfile "{known}"' in found
        assert known.read_text() == f"[127.0.0.1]:{port} {HOST_KEY}\n"
    assert "stricthostkeychecking true" not in resolved(file, "other")  # other hosts keep their own settings


def test_ansible_gets_the_same_options(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("lab/exp", "--ansible", "--login", "me")
    assert status == 0
    hosts = yaml.safe_load(out)["all"]["children"]["lab_exp"]["hosts"]
    assert {name: one["ansible_port"] for name, one in hosts.items()} == {"exp-0": 10000, "exp-1": 10020}
    assert {one["ansible_user"] for one in hosts.values()} == {"me"}
    words = shlex.split(hosts["exp-1"]["ansible_ssh_args"])
    assert "StrictHostKeyChecking=yes" in words and "ControlPath=none" in words
    program = shutil.which("ssh")
    assert program is not None
    asked = [program, "-G", "-F", "/dev/null", *words, "127.0.0.1"]
    found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    assert str(tmp_path / "100% cache/slicemgr/known_hosts/127.0.0.1-10020") in found


def test_names_that_several_slices_have_are_written_with_the_project(canned: Canned, run: Run) -> None:
    here = [slice(project="lab"), slice(project="a-b"), slice("one", project="lab"), slice("b-exp", project="a")]
    canned.on("GET /slices", {"slices": here})
    hosts = [line.split()[1:] for line in run()[1].splitlines() if line.startswith("Host ")]
    assert hosts == [["lab.exp-0"], ["a-b.exp-0"], ["one-0", "lab.one-0"], ["b-exp-0", "a.b-exp-0"]]
    groups = yaml.safe_load(run("--ansible")[1])["all"]["children"]
    assert list(groups) == ["lab_exp", "a_b_exp", "lab_one", "a_b_exp_2"]


def test_a_sliver_without_a_host_key_has_no_entry(canned: Canned, run: Run) -> None:
    canned.on("GET /slices/exp", slice(slivers=[sliver(), at(1, 10020, None)]))
    status, out, err = run("exp")
    assert status == 0 and out.count("Host ") == 1 and "# exp-1 has no host key yet" in out
    assert "exp-1 has no host key yet" in err
    assert "exp-1" not in run("exp", "--ansible")[1]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (slice("x\nProxyCommand rm"), "not a name"),
        (slice(project="*"), "not a name"),
        (slice(slivers=[sliver(ssh={"host": "h\n Match all", "port": 1, "host_key": HOST_KEY})]), "not a host"),
        (slice(slivers=[sliver(ssh={"host": "h", "port": 1, "host_key": f"\n* {HOST_KEY}"})]), "ed25519 key"),
    ],
)
def test_what_the_service_sends_cannot_add_lines(
    canned: Canned, run: Run, made: dict[str, object], message: str
) -> None:
    canned.on("GET /slices/exp", made)
    status, out, err = run("exp")
    assert (status, out) == (1, "") and message in err


@pytest.mark.parametrize("more", [("-l", "me\nHost *"), ("-l", ""), ("-i", 'a"b')])
def test_options_that_cannot_be_written(run: Run, more: tuple[str, ...]) -> None:
    status, out, err = run("exp", *more)
    assert (status, out) == (2, "") and more[0].replace("-l", "--login").replace("-i", "--identity") in err

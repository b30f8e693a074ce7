"""Programs and files that slicectl uses: ssh, the image builder, disk images."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from canned_service import HOST_KEY, Answer, Canned, Json, operation, slice, sliver

from slicemgr.client.ssh import ssh_words

SHOW_ARGUMENTS = '#!/bin/sh\nfor one in "$@"; do printf "%s\\n" "$one"; done\nexit 42\n'


@pytest.fixture
def canned() -> Iterator[Canned]:
    with Canned() as service:
        service.on("GET /slices/exp", slice(slivers=[sliver(), sliver(1)]))
        yield service


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with slicectl and, in place of ssh and slicemgr, programs that print their arguments and exit 42."""
    folder = tmp_path / "bin"
    folder.mkdir()
    slicectl = f"#!{sys.executable}\nimport sys\nfrom slicemgr.cli import main\nsys.exit(main())\n"
    for name, text in (("slicectl", slicectl), ("ssh", SHOW_ARGUMENTS), ("slicemgr", SHOW_ARGUMENTS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def slicectl(canned: Canned, programs: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": str(programs),
        "HOME": str(programs.parent),
        "XDG_CACHE_HOME": str(programs.parent / "100% cache"),
        "SLICEMGR_URL": canned.url,
        "SLICEMGR_TOKEN": "t",
    }
    words = [str(programs / "slicectl"), *map(str, args)]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, cwd=programs.parent)


def test_ssh_trusts_the_recorded_key_alone(canned: Canned, programs: Path) -> None:
    done = slicectl(canned, programs, "ssh", "-i", "key", "exp/1", "--", "ls", "-l", "a b")
    assert done.returncode == 42, done.stderr
    words = done.stdout.splitlines()
    assert words[-5:] == ["--", "root@127.0.0.1", "ls", "-l", "a b"]
    assert words[:2] == ["-p", "10000"]
    assert {"StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null", "HostKeyAlgorithms=ssh-ed25519"} <= {*words}
    known = programs.parent / "100% cache/slicemgr/known_hosts/127.0.0.1-10000"
    assert known.read_text() == f"[127.0.0.1]:10000 {HOST_KEY}\n"
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    assert stat.S_IMODE(known.parent.stat().st_mode) == 0o700
    assert list(known.parent.iterdir()) == [known]


def test_ssh_itself_understands_the_options(tmp_path: Path) -> None:
    known = tmp_path / 'a "b" 100% c'.replace('"', "")
    words = ssh_words(sliver(), known, "key", "root")  # type: ignore[arg-type]  # canned JSON
    program = shutil.which("ssh")
    assert program is not None
    end = words.index("--")
    asked = [program, "-F", "/dev/null", "-G", *words[1:end], *words[end:]]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    expected = {"stricthostkeychecking true", "hostname 127.0.0.1", "port 10000", "user root", "checkhostip no"}
    assert expected <= {*told}
    assert any(line.startswith("userknownhostsfile ") and line.endswith(str(known)) for line in told)


@pytest.mark.parametrize(
    ("changes", "target", "status", "message"),
    [
        ({}, "exp/7", 3, "no sliver 7"),
        ({}, "exp/", 2, "'' is not a valid name"),
        ({}, "lab/exp/x", 2, "is not the name of a sliver"),
        ({}, "nope", 3, ""),
        ({}, "-x", 2, "No such option"),
        ({"state": "stopped"}, "exp", 4, "`slicectl start exp`"),
        ({"state": "paused"}, "exp", 4, "`slicectl resume exp`"),
        ({"ssh": {"host": "h", "port": 1, "host_key": None}}, "exp", 4, "no host key yet"),
        ({"ssh": {"host": "-oProxyCommand=x", "port": 1, "host_key": HOST_KEY}}, "exp", 1, "not a host"),
        ({"ssh": {"host": "h\n* ", "port": 1, "host_key": HOST_KEY}}, "exp", 1, "not a host"),
        ({"ssh": {"host": "h", "port": 1, "host_key": f"\n* {HOST_KEY}"}}, "exp", 1, "ed25519 key"),
    ],
)
def test_ssh_is_not_started_in_vain(
    canned: Canned, programs: Path, changes: Json, target: str, status: int, message: str
) -> None:
    canned.on("GET /slices/exp", slice(slivers=[sliver(**changes)]))
    done = slicectl(canned, programs, "ssh", target)
    assert done.returncode == status and message in done.stderr
    assert done.stdout == ""


def test_an_option_after_the_name_is_not_run_as_a_command(canned: Canned, programs: Path) -> None:
    done = slicectl(canned, programs, "ssh", "exp", "-i", "key")
    assert done.returncode == 2 and "put options before NAME" in done.stderr
    assert slicectl(canned, programs, "ssh", "exp", "ls", "-l").stdout.splitlines()[-3:] == [
        "root@127.0.0.1",
        "ls",
        "-l",
    ]


def test_ssh_that_is_not_installed(canned: Canned, programs: Path) -> None:
    (programs / "ssh").unlink()
    done = slicectl(canned, programs, "ssh", "exp")
    assert done.returncode == 1 and "openssh-client" in done.stderr


def test_image_build_is_the_neighbours_work(canned: Canned, programs: Path) -> None:
    done = slicectl(canned, programs, "image", "build", "debian-12", "--output", "d.qcow2")
    assert (done.returncode, done.stdout.split()) == (42, ["image-build", "debian-12", "--output", "d.qcow2"])
    (programs / "slicemgr").unlink()
    assert slicectl(canned, programs, "image", "build", "debian-12").returncode == 1


@pytest.mark.parametrize(
    ("content", "flags", "format"),
    [(b"QFI\xfb and more", (), "qcow2"), (b"\0" * 512, (), "raw"), (b"QFI\xfb", ("--format", "raw"), "raw")],
)
def test_image_import_sends_the_file(
    canned: Canned, programs: Path, content: bytes, flags: tuple[str, ...], format: str
) -> None:
    file = programs.parent / "disk"
    file.write_bytes(content)
    image = {"name": "n", "sha256": "ab" * 32, "format": format, "virtual_size": 512}
    canned.on("POST /images", Answer(202, {"image": image, "operation": operation(kind="image-import")}))
    canned.on("GET /operations/op1", operation("done", 2))
    canned.on(f"GET /images/{image['sha256']}", image)
    done = slicectl(canned, programs, "image", "import", file, "--name", "n", *flags, "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == image
    (sent,) = canned.asked("POST /images")
    assert (sent.data, sent.query) == (content, {"name": "n", "format": format})


def test_an_image_that_is_known_needs_no_operation(canned: Canned, programs: Path) -> None:
    (programs.parent / "disk").write_bytes(b"x")
    canned.on("POST /images", {"image": {"name": "n", "sha256": "ab" * 32}})
    canned.on(f"GET /images/{'ab' * 32}", {"name": "n", "sha256": "ab" * 32})
    assert slicectl(canned, programs, "image", "import", "disk", "--name", "n").returncode == 0
    assert canned.asked("GET /operations/op1") == []


@pytest.mark.parametrize(("name", "message"), [("missing", "does not exist"), ("bin", "not a file"), ("void", "empty")])
def test_a_file_that_is_no_image_is_named(canned: Canned, programs: Path, name: str, message: str) -> None:
    (programs.parent / "void").touch()
    os.mkfifo(programs.parent / "pipe")
    for word in (name, "pipe"):
        done = slicectl(canned, programs, "image", "import", word, "--name", "n")
        assert done.returncode == 2 and done.stderr.startswith(f"slicectl: FILE: {word} ")
        assert word == "pipe" or message in done.stderr
    assert canned.requests == []

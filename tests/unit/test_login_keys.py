"""authorized_keys of a root: managed keys change, the tenant's stay, and no path leads out of the root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.drivers.guest import authorized_keys, seed
from slicemgr.drivers.guest.identity import Identity
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.errors import Failed

OURS, NEW, THEIRS = "ssh-ed25519 AAAAours a", "ssh-ed25519 AAAAnew b", "ssh-ed25519 AAAAtheirs c"
PATH = "root/.ssh/authorized_keys"


def read(tmp_path: Path) -> list[str]:
    return (tmp_path / PATH).read_text().splitlines()


def write(tmp_path: Path, want: list[str], put: list[str] | None) -> None:
    with Root(tmp_path) as root:
        authorized_keys.write(root, want, put)


def test_the_first_time_what_the_image_brought_goes(tmp_path: Path) -> None:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_text(THEIRS)
    write(tmp_path, [OURS], None)
    assert read(tmp_path) == [OURS]


def test_ours_change_and_the_tenants_stay(tmp_path: Path) -> None:
    write(tmp_path, [OURS], None)
    with (tmp_path / PATH).open("a") as file:
        file.write(f"# mine\n{THEIRS}\n")
    write(tmp_path, [NEW], [OURS])
    assert read(tmp_path) == ["# mine", THEIRS, NEW]
    write(tmp_path, [], [OURS, NEW])
    assert read(tmp_path) == ["# mine", THEIRS]


@given(st.lists(st.sampled_from([OURS, NEW, "a", "b"])), st.lists(st.sampled_from([OURS, NEW]), unique=True))
def test_merging_again_changes_nothing(lines: list[str], want: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    once = authorized_keys.merged(content, [OURS, NEW], want)
    assert authorized_keys.merged(once, [OURS, NEW], want) == once
    assert [line for line in once.decode().splitlines() if line in (OURS, NEW)] == want
    assert [line for line in once.decode().splitlines() if line in "ab"] == [line for line in lines if line in "ab"]


@pytest.mark.parametrize("trap", ["file", "directory", "home"])
def test_a_symlink_leads_nowhere_outside(tmp_path: Path, trap: str) -> None:
    """The root of the tenant is a subdirectory; next to it is the file that a plain write would change."""
    outside, root = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    (outside / "authorized_keys").write_text("the node's\n")
    (root / "root").mkdir(parents=True)
    if trap == "file":
        (root / "root/.ssh").mkdir()
        (root / PATH).symlink_to(outside / "authorized_keys")
    elif trap == "directory":
        (root / "root/.ssh").symlink_to(outside)
    else:
        (root / "etc").mkdir()
        (root / "etc/passwd").write_text(f"root:x:0:0::{outside}:/bin/sh\n")
    write(root, [OURS], [NEW])
    assert (outside / "authorized_keys").read_text() == "the node's\n"
    assert sorted(one.name for one in outside.iterdir()) == ["authorized_keys"]


def test_a_plain_write_would_be_led_outside(tmp_path: Path) -> None:
    """The control."""
    (tmp_path / "tree/root").mkdir(parents=True)
    (tmp_path / "tree/root/.ssh").symlink_to(tmp_path)
    (tmp_path / "tree" / PATH).write_text(OURS)
    assert (tmp_path / "authorized_keys").exists()


def test_a_fifo_holds_nobody_up_and_a_huge_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / PATH).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / PATH)
    write(tmp_path, [OURS], [])
    assert read(tmp_path) == [OURS]
    (tmp_path / PATH).write_bytes(b"x\n" * (1 << 20))
    with pytest.raises(Failed, match="larger"):
        write(tmp_path, [OURS], [])


def test_the_note_survives_and_says_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "slivers/abcdefgh-0").mkdir(parents=True)
    assert authorized_keys.read_note(tmp_path, "abcdefgh-0") is None
    authorized_keys.write_note(tmp_path, "abcdefgh-0", [OURS, NEW, OURS], [NEW])
    note = authorized_keys.read_note(tmp_path, "abcdefgh-0")
    assert note == authorized_keys.Note((OURS, NEW), (NEW,))
    assert note.gone([NEW]) == (OURS,)


def test_a_machine_names_the_other_slivers_at_every_start(tmp_path: Path) -> None:
    """The script of the seed itself, run here with another file: the tenant's lines stay, a clone's are replaced."""
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n10.9.9.9 own\n")
    for net in ("10.0.0", "10.0.1"):
        peers = tuple((f"exp-{number}", f"{net}.{number}") for number in range(3))
        identity = Identity("exp-1", f"{net}.1", "169.254.1.1", (), (), b"k", "k", peers=peers)
        script = yaml.safe_load(seed.files(identity, "abcdefgh-1", "", "52:00:00:00:00:01")["vendor-data"])["bootcmd"][
            -1
        ][2]
        for _ in range(2):
            subprocess.run(["sh", "-c", script.replace("/etc/hosts", str(file))], check=True)
        lines = file.read_text().splitlines()
        assert lines[:2] == ["127.0.0.1 localhost", "10.9.9.9 own"]
        assert [line for line in lines[2:] if "#" not in line] == [f"{net}.0\texp-0", f"{net}.2\texp-2"]
    alone = Identity("exp-1", "10.0.0.1", "169.254.1.1", (), (), b"k", "k")
    assert "exp-" not in str(yaml.safe_load(seed.files(alone, "abcdefgh-1", "", "52:00:00:00:00:01")["vendor-data"]))


def test_a_machine_sets_its_keys_at_every_start(tmp_path: Path) -> None:
    """The script of the seed itself, run here with another home and another directory for its files."""
    identity = Identity(
        "exp-0", "10.0.0.1", "169.254.1.1", (), (NEW, "x y'$(touch hit)"), b"k", "k", keys_put=(OURS, NEW)
    )
    files = seed.files(identity, "abcdefgh-0", "", "52:00:00:00:00:01")
    assert files["keys-gone"] == f"{OURS}\n"
    script = yaml.safe_load(files["vendor-data"])["bootcmd"][1][2]
    script = script.replace("~root", str(tmp_path)).replace("/run/", f"{tmp_path}/")
    keys = tmp_path / ".ssh/authorized_keys"
    for before in ("", f"{OURS}\n{THEIRS}\n", f"{THEIRS}\n{NEW}\n"):
        keys.parent.mkdir(exist_ok=True)
        keys.write_text(before)
        subprocess.run(["sh", "-c", script], check=True, cwd=tmp_path)
        theirs = [THEIRS] if THEIRS in before else []
        assert keys.read_text().splitlines() == [*theirs, NEW, "x y'$(touch hit)"]
        assert keys.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "hit").exists()

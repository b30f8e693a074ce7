"""Files of root are private to root or the web process; readable files of earlier versions are made private."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bare_service import config_in

from slicemgr import names
from slicemgr.agent import file_modes
from slicemgr.agent.agent_lock import only_one
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.storage import atomic_file
from slicemgr.ipc import unix_socket

USER = 64125  # a UID that no account uses
SLIVER = "abcdefgh-0"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextmanager
def everybody_may_read() -> Iterator[None]:
    mask = os.umask(0)
    try:
        yield
    finally:
        os.umask(mask)


def test_what_root_writes_is_roots_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_text("of an image")
    with everybody_may_read(), Root(tmp_path) as root, only_one(tmp_path / "agent.lock"):
        (tmp_path / "note.new").write_text("of a process that was killed")
        atomic_file.write(tmp_path / "note", "text")
        assert root.copy_out("kernel", tmp_path / "copy")
    assert {mode(tmp_path / name) for name in ("note", "copy", "agent.lock")} == {0o600}


def test_a_socket_is_the_web_processs_and_nobody_elses(tmp_path: Path) -> None:
    for user, expected in ((f"{USER}:{USER}", USER), ("no-such-user", 0)):
        with everybody_may_read(), unix_socket.bind(socket.SOCK_DGRAM, tmp_path / "sock", user):
            held = (tmp_path / "sock").lstat()
            assert (held.st_uid, stat.S_IMODE(held.st_mode)) == (expected, 0o600)


def test_files_of_an_earlier_version_are_tightened(tmp_path: Path) -> None:
    config, other = config_in(tmp_path), tmp_path / "other"
    config = replace(config, node=replace(config.node, pool=tmp_path / "pool"))
    other.touch(mode=0o644)
    sliver = names.sliver_dir(config.node.pool, SLIVER)
    old = [
        config.node.run_dir / "recorder.json",
        config.node.state_dir / "acceleration.json",
        config.images_dir / f"{'0' * 64}.json",
        sliver / "limit",
        sliver / "host_key.pub",
        sliver / names.KERNEL,
    ]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
        path.chmod(0o644)
    (sliver / names.INITRD).symlink_to(other)
    file_modes.tighten(config)
    assert {mode(path) for path in old} == {0o600}
    assert mode(other) == 0o644, "a link is not followed"

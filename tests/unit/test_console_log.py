"""The console log of a virtual machine: the amount of output."""

from __future__ import annotations

from pathlib import Path

from slicemgr import names
from slicemgr.drivers.libvirt import console_log

SLIVER = "abcdefgh-0"


def test_size_is_nothing_before_there_is_a_log(tmp_path: Path) -> None:
    assert console_log.size(tmp_path, SLIVER) == 0
    directory = names.sliver_dir(tmp_path, SLIVER)
    directory.mkdir(parents=True)
    (directory / names.CONSOLE_LOG).write_bytes(b"[    0.000000] Linux")
    assert console_log.size(tmp_path, SLIVER) == 20

"""The file with the host key of a sliver, which several threads of a script may write at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slicemgr.client import ssh


def test_threads_do_not_write_the_keys_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def wrong(number: int) -> int:
        key = f"ssh-ed25519 {'A' * 40}{number}"
        sliver: Any = {"ssh": {"host": "192.0.2.7", "port": 10000 + number, "host_key": key}}
        line = f"[192.0.2.7]:{10000 + number} {key}\n"
        return sum(ssh.known_hosts("exp", sliver).read_text() != line for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(wrong, range(4))) == [0] * 4

"""Settings: values are read, and invalid ones are refused with their names."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr import config
from slicemgr.errors import Code, Refused


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 << 20), ("2GiB", 2 << 30), ("1048576", 1 << 20), ("1.5K", 1536), (" 1 k ", 1024)]
)
def test_sizes(text: str, size: int) -> None:
    assert config.parse_size(text) == size


@given(st.integers(0, 1 << 50))
def test_whole_bytes_come_back_as_they_are(size: int) -> None:
    assert config.parse_size(size) == size


@pytest.mark.parametrize("text", ["", "M", "1X", "-1", "1e9", "0x10", "1 M M", "9" * 40, "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(Refused) as caught:
        config.parse_size(text, "memory")
    assert caught.value.field == "memory" and "is not a size" in caught.value.message


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100Mbit", 10**8),
        ("1Gbit/s", 10**9),
        ("800kbit", 800_000),
        ("1.5 mbit", 1_500_000),
        ("64000", 64000),
        ("64000bit", 64000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert config.parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "bit", "M", "1M", "1Mbps", "1Mibit", "-1kbit", "1e9", "1 Mbit s", "9" * 40, "nan"]
)
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(Refused) as caught:
        config.parse_rate(text, "net_in")
    assert caught.value.field == "net_in" and "is not a rate" in caught.value.message


@pytest.mark.parametrize(
    ("text", "span"), [("30s", timedelta(seconds=30)), ("7d", timedelta(days=7)), ("1.5h", timedelta(minutes=90))]
)
def test_durations(text: str, span: timedelta) -> None:
    assert config.parse_duration(text) == span


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7y", "1000000d", "9" * 30 + "d"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(Refused) as caught:
        config.parse_duration(text, "lease")
    assert caught.value.field == "lease" and caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[nod]", "nod"),
        ("[node]\nnmae = 'x'", "node.nmae"),
        ("node = 1", "node"),
        ("[node]\nread_ahead = '1K'", "node.read_ahead"),
        ("[web]\nport = '80'", "web.port"),
        ("[web]\nport = true", "web.port"),
        ("[limits]\nmemory = 'much'", "limits.memory"),
        ("[lease]\ndefault = '1 fortnight'", "lease.default"),
        ("[network]\nports_first = 9", "network.ports_first"),
        ("[network]\nports_per_sliver = 0", "network.ports_per_sliver"),
        ("[network]\naddresses = '10.0.0.1/8'", "network.addresses"),
        ("[network]\ngateway = 'x'", "network.gateway"),
        ("[network]\nfirewall = 'x'", "network.firewall"),
        ("[network]\ndns = [1]", "network.dns"),
        ("[network]\nconnections = 255", "network.connections"),
        ("[network]\nconnection_rate = 1000001", "network.connection_rate"),
        ("[network]\nuntracked = ['ssh']", "network.untracked"),
        ("[network]\nuntracked = [22, 70000]", "network.untracked"),
        ("[network]\nuntracked = [10000]", "network.untracked"),
        ("[agent]\nworkers = 0", "agent.workers"),
        ("[oidc]\nclient_id = 'testbed'", "oidc.issuer"),
        ("[oidc]\nissuer = 'http://login.example'\nclient_id = 'testbed'", "oidc.issuer"),
        ("[oidc]\nissuer = 'https://login.example'\nclient_id = 'testbed'", "web.url"),
        ("[oidc]\nissuers = 'x'", "oidc.issuers"),
        ("not toml", "config"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "slicemgr.toml"
    path.write_text(text)
    with pytest.raises(Refused) as caught:
        config.load(path)
    assert caught.value.field == field and caught.value.message


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "slicemgr.toml"
    path.write_text("[node]\nstate_dir = '/srv/x'\n[limits]\nmemory = '1G'\ncpu = 2\n[lease]\ngrace = '2d'\n")
    read = config.load(path)
    assert read.limits.memory.bytes == 1 << 30 and read.limits.cpu == 2.0
    assert read.lease.grace == timedelta(days=2)
    assert read.store_url == "sqlite:////srv/x/db/slicemgr.db"
    assert read.uploads_dir == Path("/srv/x/uploads")
    assert read.experiments_dir == Path("/srv/x/experiments")


def test_a_file_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="does not exist"):
        config.load(tmp_path / "none")
    monkeypatch.setenv("SLICEMGR_CONFIG", str(tmp_path / "none"))
    with pytest.raises(Refused, match="does not exist"):
        config.load()

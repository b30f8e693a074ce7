"""Invalid input: each error has the field, what is wrong, and what would be right."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import KEY, config_in
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.config import Config
from slicemgr.errors import Refused
from slicemgr.model import MIB, SliverType, Where
from slicemgr.service.slices import request_keys, specs

CONFIG = config_in(Path("/nonexistent"))
FINE: dict[str, Any] = {"name": "exp", "type": "lxc", "image": "debian-12", "ssh_keys": [KEY]}


def test_a_silent_request_gets_the_defaults() -> None:
    spec = specs.slice_spec(FINE, CONFIG)
    defaults = CONFIG.limits
    assert (spec.name, spec.type, spec.count) == ("exp", SliverType.LXC, 1)
    assert (spec.ports, spec.lease) == (20, timedelta(days=7))
    assert (spec.limits.memory, spec.limits.disk) == (defaults.memory.bytes, defaults.disk.bytes)
    assert (spec.limits.pids, spec.limits.cpu, spec.limits.cpu_shares) == (512, 1.0, 1024)
    assert (spec.limits.memory_soft, spec.limits.io_weight, spec.where) == (None, None, Where())
    assert (spec.limits.net_in, spec.limits.net_out) == (None, None)


def test_everything_said_is_taken() -> None:
    more = {"count": "3", "cpu": "0.5", "cpu_shares": 512, "memory": "64M", "memory_soft": 33554432, "disk": "1G"}
    rates = {"net_in": "100Mbit", "net_out": 800000}
    spec = specs.slice_spec({**FINE, **more, **rates, "pids": 64, "io_weight": 10, "ports": 4, "lease": "12h"}, CONFIG)
    assert (spec.count, spec.ports, spec.lease) == (3, 4, timedelta(hours=12))
    limits = spec.limits
    assert (limits.cpu, limits.cpu_shares, limits.memory, limits.memory_soft) == (0.5, 512, 64 * MIB, 32 * MIB)
    assert (limits.net_in, limits.net_out) == (100_000_000, 800_000)
    assert (limits.disk, limits.pids, limits.io_weight) == (1 << 30, 64, 10)


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        *(("memory", "30", "30M"), ("memory", 512, "512M"), ("memory", "1", "1G"), ("memory_soft", " 64 ", "64M")),
        *(("disk", "4", "4G"), ("disk", "0.5", "0.5G"), ("io_rate", "20", "20M")),
    ],
)
def test_a_size_without_a_unit_is_taken_for_a_mistake(field: str, value: Any, meant: str) -> None:
    with pytest.raises(specs.InvalidSpec) as error:
        specs.slice_spec({**FINE, "type": "kvm", field: value}, CONFIG)
    (only,) = error.value.errors
    assert (only.field, only.message) == (field, f"{str(value).strip()} B is too little")
    assert only.hint.startswith(f"did you mean {meant}? Use at least ")
    assert specs.slice_spec({**FINE, "type": "kvm", "memory": "8G", field: meant}, CONFIG)


def test_the_same_of_a_larger_disk() -> None:
    with pytest.raises(Refused, match="8 B is too little") as error:
        specs.disk("8")
    assert error.value.hint.startswith("did you mean 8G?")
    assert specs.disk(str(64 * MIB)) == 64 * MIB


BAD: list[tuple[str, Any, str]] = [
    ("name", None, "is missing"),
    ("name", "", "is empty"),
    ("name", "a" * 64, "64 characters are too many"),
    ("name", "a" * 41, "41 characters are too many"),
    ("name", "../x", "is not a valid slice name"),
    ("name", "a b", "is not a valid slice name"),
    ("name", "-rf", "is not a valid slice name"),
    ("name", "exp-", "is not a valid slice name"),
    ("name", "a\nb", "is not a valid slice name"),
    ("name", "exp\n", "is not a valid slice name"),
    ("name", "Exp", "is not a valid slice name"),
    ("name", "schön", "is not a valid slice name"),
    ("name", 7, "must be text"),
    ("type", "docker", "is unknown"),
    ("type", ["lxc"], "is unknown"),
    ("type", None, "is missing"),
    ("image", "", "is empty"),
    ("image", None, "is missing"),
    ("count", 0, "out of range"),
    ("count", -1, "out of range"),
    ("count", 501, "out of range"),
    ("count", 10**30, "out of range"),
    ("count", 1.5, "not a whole number"),
    ("count", True, "not a whole number"),
    ("count", "many", "not a whole number"),
    ("memory", 0, "too small"),
    ("memory", -5, "is negative"),
    ("memory", "-5M", "is negative"),
    ("memory", "15M", "too small"),
    ("memory", "9999999999T", "exceeds the capacity of every node"),
    ("memory", "9" * 40, "is not a size"),
    ("memory", "lots", "is not a size"),
    ("memory", "", "is not a size"),
    ("memory", True, "is not a size"),
    ("memory", [1], "is not a size"),
    ("memory_soft", "1G", "exceeds the memory limit"),
    ("memory_guarantee", "1G", "exceeds the memory limit"),
    ("memory_guarantee", "1023K", "too small"),
    ("memory_guarantee", -1, "is negative"),
    ("memory_guarantee", False, "is not a size"),
    ("memory_weight", 0, "out of range"),
    ("memory_weight", 10001, "out of range"),
    ("disk", 0, "too small"),
    ("disk", "1e9", "is not a size"),
    ("pids", 7, "out of range"),
    ("pids", 10**9, "out of range"),
    ("cpu", 0, "out of range"),
    ("cpu", -1, "out of range"),
    ("cpu", 1e9, "out of range"),
    ("cpu", "nan", "not a number of CPU cores"),
    ("cpu", "inf", "out of range"),
    ("cpu", "fast", "not a number of CPU cores"),
    ("cpu", True, "not a number of CPU cores"),
    ("cpu_shares", 1, "out of range"),
    ("io_weight", 0, "out of range"),
    ("io_weight", 1001, "out of range"),
    ("net_in", 0, "out of range"),
    ("net_in", "63kbit", "out of range"),
    ("net_in", "101Gbit", "out of range"),
    ("net_in", -1, "is not a rate"),
    ("net_in", "100Mbps", "is not a rate"),
    ("net_out", "fast", "is not a rate"),
    ("net_out", "", "is not a rate"),
    ("net_out", True, "is not a rate"),
    ("net_out", 1e6, "is not a rate"),
    ("net_out", [1], "is not a rate"),
    ("net_out", "9" * 40, "is not a rate"),
    ("ports", 0, "out of range"),
    ("ports", -20, "out of range"),
    ("ports", 1001, "out of range"),
    ("ports", "a few", "not a whole number"),
    ("lease", "0d", "greater than zero"),
    ("lease", "-1d", "not in the future"),
    ("lease", "91d", "exceeds the longest lease"),
    ("lease", "99999999w", "too long"),
    ("lease", "soon", "not a duration"),
    ("lease", 7, "must be text"),
    ("node", "", "is empty"),
    ("ssh_keys", None, "is missing"),
    ("ssh_keys", [], "at least one key"),
    ("ssh_keys", [""], "it contains no key"),
    ("ssh_keys", ["\n# a comment\n"], "it contains no key"),
    ("ssh_keys", KEY, "list of texts"),
    ("ssh_keys", [7], "list of texts"),
    ("ssh_keys", ["hello world"], "not an SSH public key"),
    ("ssh_keys", [KEY, "ssh-ed25519 AAAA"], "does not contain a valid key"),
    ("ssh_keys", ["ssh-ed25519"], "does not contain a valid key"),
    ("ssh_keys", [KEY.replace("ssh-ed25519 ", "ssh-rsa ")], "does not contain a valid key"),
    ("ssh_keys", [f'command="rm -rf /" {KEY}'], "options before a key"),
    ("ssh_keys", ["ssh-dss AAAAB3NzaC1kc3MAAACBAP"], "DSA keys are no longer accepted"),
    ("ssh_keys", ["\0" * 100], "not an SSH public key"),
    ("ssh_keys", ["ssh-ed25519 " + "A" * 20000], "too long"),
    ("surprise", 1, "unknown field"),
]


@pytest.mark.parametrize(("field", "value", "words"), BAD, ids=[f"{f}-{str(v)[:20]!r}" for f, v, _ in BAD])
def test_bad_input(field: str, value: Any, words: str) -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec({**FINE, field: value}, CONFIG)
    (error,) = caught.value.errors
    assert error.field == field
    assert words in error.message
    assert len(str(error)) < 400


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec({**FINE, "name": "", "memory": "x", "count": 0}, CONFIG)
    assert [error.field for error in caught.value.errors] == ["name", "count", "memory"]
    assert (caught.value.field, caught.value.message) == ("name", "is empty")


TEXT = st.text(st.sampled_from("ab9-._ /\n\0é5MGd$"), max_size=70)


@given(
    st.dictionaries(
        st.sampled_from([*FINE, "count", "cpu", "memory", "disk", "pids", "ports", "lease", "node", "?"]),
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(TEXT, max_size=3),
    )
)
def test_whatever_comes_is_a_spec_or_a_refusal(raw: dict[str, Any]) -> None:
    try:
        spec = specs.slice_spec({**FINE, **raw}, CONFIG)
    except Refused:
        return
    assert specs.slice_name(spec.name) == spec.name
    assert 1 <= spec.count <= CONFIG.limits.slivers_per_slice
    assert f"{spec.name}-999".isascii() and len(f"{spec.name}-999") <= 63


def test_a_pool_smaller_than_the_most_ports_bounds_them() -> None:
    network = type(CONFIG.network)(ports_first=10000, ports_last=10049)
    config = Config(network=network)
    assert specs.slice_spec({**FINE, "ports": 50}, config).ports == 50
    with pytest.raises(specs.InvalidSpec, match="1 to 50"):
        specs.slice_spec({**FINE, "ports": 51}, config)


# keys


def openssh(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def private(key: Any, form: PrivateFormat) -> str:
    return str(key.private_bytes(Encoding.PEM, form, NoEncryption()).decode())


ED, EC = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())


def test_keys_of_a_file_without_comments_and_twins() -> None:
    text = f"# mine\n\n{openssh(ED)} me@host one\r\n  {openssh(EC)}\n{openssh(ED)} me@host one\n"
    assert request_keys.parse([text, openssh(EC)]) == (f"{openssh(ED)} me@host one", openssh(EC))


def test_a_security_key_is_a_key() -> None:
    def part(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    kind = b"sk-ssh-ed25519@openssh.com"
    point = ED.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    line = f"{kind.decode()} {base64.b64encode(part(kind) + part(point) + part(b'ssh:')).decode()}"
    assert request_keys.parse([line]) == (line,)


@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_a_private_key_is_refused_and_not_repeated(form: PrivateFormat) -> None:
    text = private(EC, form)
    with pytest.raises(Refused, match="private key") as caught:
        request_keys.parse([KEY, text])
    secret = text.splitlines()[1]
    assert secret not in repr((caught.value.args, str(caught.value)))
    assert ".pub" in caught.value.hint


def test_a_short_rsa_key_is_refused() -> None:
    assert request_keys.parse([openssh(rsa.generate_private_key(65537, 2048))])
    with pytest.raises(Refused, match="1024 bits"):
        request_keys.parse([openssh(rsa.generate_private_key(65537, 1024))])


def test_a_comment_cannot_smuggle_a_line() -> None:
    (key,) = request_keys.parse([f"{openssh(ED)} evil\x1b[2J"])
    assert key == openssh(ED)


def test_too_many_keys() -> None:
    many = "\n".join(openssh(ed25519.Ed25519PrivateKey.generate()) for _ in range(request_keys.MOST_KEYS + 1))
    with pytest.raises(Refused, match="exceed the limit"):
        request_keys.parse([many])


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a b", "x" * 65, ".hidden", None])
def test_bad_image_names(name: Any) -> None:
    with pytest.raises(Refused) as caught:
        specs.image_name(name)
    assert caught.value.field == "name"

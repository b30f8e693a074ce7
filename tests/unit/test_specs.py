"""Bad input: each named with its field and what is wrong, before anything happens."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from world import public_key, request, settings

from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, MIB
from slicemgr.service import specs

WRONG_TYPES: tuple[Any, ...] = ("x", 1.5, True)
NO_SIZES: tuple[Any, ...] = ("much", "", True, [], "1" * 40)
OUT_OF_RANGE: tuple[Any, ...] = (0, -1, 10**9, "-5")

BAD: list[tuple[str, Any, str]] = [
    ("name", "", "is empty"),
    ("name", "a" * 64, "64 characters are too long"),
    ("name", "../x", "cannot be a slice's name"),
    ("name", "a b", "cannot be a slice's name"),
    ("name", "-rf", "cannot be a slice's name"),
    ("name", "a\n", "cannot be a slice's name"),
    ("name", "a\nb", "cannot be a slice's name"),
    ("name", "é", "cannot be a slice's name"),
    ("name", 7, "must be text"),
    ("name", None, "is missing"),
    ("type", "vm", "is unknown"),
    ("type", ["lxc"], "is unknown"),
    ("image", "", "is empty"),
    ("image", 5, "must be text"),
    ("node", "", "is empty"),
    ("lease", 7, "must be text"),
    ("lease", "0d", "must be longer than nothing"),
    ("lease", "-7d", "is not in the future"),
    ("lease", "91d", "longer than any lease may be"),
    ("lease", "9999999d", "is too long"),
    ("lease", "soon", "is not a duration"),
    ("cpu", 0, "out of range"),
    ("cpu", -1, "out of range"),
    ("cpu", 1e9, "out of range"),
    ("cpu", "inf", "out of range"),
    ("cpu", "nan", "is not a number of cores"),
    ("cpu", "two", "is not a number of cores"),
    ("cpu", True, "is not a number of cores"),
    *((field, value, "out of range") for field in ("count", "ports", "pids") for value in OUT_OF_RANGE),
    *((field, value, "is not a whole number") for field in ("count", "ports", "pids") for value in WRONG_TYPES),
    *((field, 0, "is too little") for field in ("memory", "disk", "memory_soft")),
    *((field, "-1G", "is negative") for field in ("memory", "disk")),
    *((field, -1, "is negative") for field in ("memory", "disk")),
    *((field, value, "is not a size") for field in ("memory", "disk") for value in NO_SIZES),
    *((field, "99999999T", "more than any node has") for field in ("memory", "disk")),
    ("memory_soft", "1G", "is above the hard limit"),
    ("io_weight", 1001, "out of range"),
    ("cpu_shares", 1, "out of range"),
    ("colour", "red", "unknown field"),
]


@pytest.mark.parametrize(("field", "value", "message"), BAD, ids=repr)
def test_bad_input_is_named(tmp_path: Path, field: str, value: Any, message: str) -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec(request(**{field: value}), settings(tmp_path))
    assert caught.value.code is Code.INVALID
    assert [one.field for one in caught.value.errors] == [field]
    assert message in caught.value.message


def rsa_key(bits: int) -> str:
    key = rsa.generate_private_key(65537, bits).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def private_key() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no key in it"),
        ("# only a comment\n\n", "there is no key in it"),
        ("hello\n", "is not an ssh public key"),
        ("ssh-ed25519", "is no such key"),
        ("ssh-ed25519 AAAA", "is no such key"),
        ("ssh-ed25519 !!!! me", "is no such key"),
        (f'command="x" {public_key()}', "options before a key"),
        ("ssh-dss AAAA", "DSA keys are not accepted"),
        (f"{public_key()}\nnonsense", "is not an ssh public key"),
        ("ssh-ed25519 " + "A" * 20000, "too long"),
    ],
)
def test_key_files_that_hold_no_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec(request(ssh_keys=[text]), settings(tmp_path))
    assert caught.value.field == "ssh_keys" and message in caught.value.message


def test_a_private_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    secret = private_key()
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec(request(ssh_keys=[public_key(), secret]), settings(tmp_path))
    assert caught.value.field == "ssh_keys" and caught.value.message == "this is a private key"
    assert secret.splitlines()[1] not in str(caught.value)


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(specs.InvalidSpec, match="1024 bits is too short"):
        specs.slice_spec(request(ssh_keys=[rsa_key(1024)]), settings(tmp_path))


@pytest.mark.parametrize("value", [[], "text", [1], None])
def test_keys_are_needed(tmp_path: Path, value: Any) -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec(request(ssh_keys=value), settings(tmp_path))
    assert caught.value.field == "ssh_keys"


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(specs.InvalidSpec) as caught:
        specs.slice_spec({"name": "-", "memory": "0", "count": -1}, settings(tmp_path))
    assert {one.field for one in caught.value.errors} == {"name", "type", "image", "count", "memory", "ssh_keys"}


def test_a_silent_request_gets_the_defaults(tmp_path: Path) -> None:
    spec = specs.slice_spec(request(), settings(tmp_path))
    assert (spec.count, spec.ports, spec.lease, spec.node) == (1, 20, timedelta(days=7), None)
    assert (spec.limits.memory, spec.limits.disk, spec.limits.pids) == (512 * MIB, 4 * GIB, 512)
    assert spec.ssh_keys == (public_key(),)


def test_what_is_said_counts(tmp_path: Path) -> None:
    more = {"count": "3", "cpu": "0.5", "memory": "1G", "disk": 2 * GIB, "lease": "2w", "ports": 1, "node": "node1"}
    spec = specs.slice_spec(request("a" * 40, **more), settings(tmp_path))
    assert (spec.count, spec.limits.cpu, spec.limits.memory, spec.limits.disk) == (3, 0.5, GIB, 2 * GIB)
    assert (spec.lease, spec.ports, spec.node) == (timedelta(days=14), 1, "node1")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-rf", "a" * 65, "a\n"])
def test_image_names(name: str) -> None:
    with pytest.raises(Refused) as caught:
        specs.image_name(name)
    assert caught.value.field == "name" and caught.value.code is Code.INVALID

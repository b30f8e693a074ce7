"""Reports of the importer are untrusted: their form, and names of devices, subvolumes and file systems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slicemgr.drivers.importer import image_findings
from slicemgr.drivers.importer.image_findings import RootDevice
from slicemgr.errors import Failed, Refused

ROOT = {"name": "/dev/sda1", "device": "/dev/sda1", "subvolume": "", "uuid": "1f-2"}


def line(**changed: Any) -> str:
    return json.dumps({"sector": "00" * 512, "partition_types": ["0x83"], "roots": [ROOT], "root_count": 1, **changed})


def one_root(**changed: str) -> str:
    return line(roots=[{**ROOT, **changed}])


@pytest.mark.parametrize("device", ["/dev/sda1", "/dev/sda", "/dev/vg-0/root.1", "/dev/md127", "/dev/mapper/luks-x"])
@pytest.mark.parametrize("subvolume", ["", "@", "@rootfs", "root", "@/.snapshots/1/snapshot"])
def test_what_installers_make_is_taken(device: str, subvolume: str) -> None:
    found = image_findings.disk(one_root(device=device, subvolume=subvolume))
    assert found.root == RootDevice(device, subvolume, "1f-2")
    assert (found.count, len(found.sector), found.partition_types) == (1, 512, ("0x83",))


@pytest.mark.parametrize(
    "subvolume",
    [
        "root |touch secproof",
        "a init=/bin/sh",
        "a,subvolid=5",
        "a\nb",
        "a\x1b[2J",
        "\u202etoor",
        "$(id)",
        "`id`",
        'a"b',
        "a;b",
        "-o",
        "../..",
        "a//b",
        "a" * 300,
        "ä",
    ],
)
def test_a_subvolume_that_a_command_line_cannot_hold_is_refused_by_a_safe_name(subvolume: str) -> None:
    with pytest.raises(Refused) as refused:
        image_findings.disk(one_root(subvolume=subvolume))
    message = str(refused.value)
    assert refused.value.field == "file"
    assert "btrfs subvolume" in message
    assert message.isascii() and message.isprintable() and len(message) < 400


@pytest.mark.parametrize(
    "device", ["", "sda1", "/dev/sda1 init=x", "/etc/passwd", "/dev/../etc", "/dev/a\n", "/dev/x/../y"]
)
def test_a_device_of_another_form_is_refused(device: str) -> None:
    with pytest.raises(Refused, match="has its root on"):
        image_findings.disk(one_root(device=device))


@pytest.mark.parametrize("uuid", ["x init=/bin/sh", "1\n2", "$x", "f" * 65, ""])
def test_an_odd_uuid_is_not_used(uuid: str) -> None:
    found = image_findings.disk(one_root(uuid=uuid))
    assert found.root is not None
    assert found.root.uuid == ""


def test_of_several_roots_none_is_the_root_and_their_names_can_be_printed() -> None:
    roots = [{**ROOT, "name": "btrfsvol:/dev/sda1/\x1b]0;x\x07"}, ROOT]
    found = image_findings.disk(line(roots=roots, root_count=2))
    assert found.root is None
    assert found.names == ("btrfsvol:/dev/sda1/\\x1b]0;x\\x07", "/dev/sda1")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        "{}",
        line(sector="zz"),
        line(sector=5),
        line(sector="00" * 513),
        line(partition_types="0x83"),
        line(partition_types=["0x83"] * 129),
        line(roots=[]),
        line(roots=["/dev/sda1"]),
        line(roots=[{}]),
        line(root_count="1"),
        line(root_count=True),
        line(root_count=0),
    ],
)
def test_what_is_not_understood_breaks_the_import(said: str) -> None:
    with pytest.raises(Failed, match="response of the importer is invalid"):
        image_findings.disk(said)


@pytest.mark.parametrize("amount", [-1, 1 << 63, 1.5, "1", None, True, 1e400])
def test_an_amount_is_a_bounded_whole_number(amount: object) -> None:
    with pytest.raises(Failed, match="response of the importer is invalid"):
        image_findings.used_bytes(json.dumps({"bytes": amount}))


def test_an_amount_is_at_least_one() -> None:
    assert [image_findings.used_bytes(json.dumps({"bytes": amount})) for amount in (0, 7)] == [1, 7]


def test_only_the_word_completes_a_stream() -> None:
    image_findings.complete('{"complete": true}')
    for said in ("{}", '{"complete": 1}', '{"complete": "true"}'):
        with pytest.raises(Failed, match="response of the importer is invalid"):
            image_findings.complete(said)


def test_an_error_of_the_importer_steers_no_terminal_and_has_an_end() -> None:
    with pytest.raises(Failed, match="cannot be read") as failed:
        image_findings.complete(json.dumps({"error": "mount: \x1b[31m\u202e" + "x" * 5000}))
    message = str(failed.value)
    assert message.isprintable()
    assert len(message) < 400

"""The rights of a node at the broker, by name; tests/system/test_broker.py tries them at a real one."""

from __future__ import annotations

import re
import subprocess

import pytest

from slicemgr.policy import broker

MINE, OTHER = "node-aaaaaaaaaaaaaaaa", "node-aaaaaaaaaaaaaaab"
NAMES = [
    *(broker.orders(MINE), broker.orders(OTHER), broker.reports(MINE), broker.reports(OTHER)),
    *(f"{broker.orders(MINE)}x", f"x{broker.orders(MINE)}", f"{broker.reports(MINE)}.x", f"x\n{broker.reports(MINE)}"),
    *("amq.default", "amq.topic", "amq.gen-x", "made", broker.HUB),
]


def allowed(pattern: str) -> list[str]:
    """RabbitMQ searches the name for the expression."""
    return [name for name in NAMES if re.search(pattern, name)]


def test_a_node_reads_and_writes_one_name_each() -> None:
    rights = broker.rights(MINE)
    assert allowed(rights.configure) == []
    assert allowed(rights.read) == [broker.orders(MINE)]
    assert allowed(rights.write) == [broker.reports(MINE)]


def test_a_dot_in_a_name_is_no_wildcard() -> None:
    assert not re.search(broker.rights("node-a.b").read, "to.node-axb")
    assert not re.search(broker.rights("node-a").write, "fromxnode-a")


def test_the_sender_is_the_name_of_the_queue() -> None:
    assert broker.sender(broker.reports(MINE)) == MINE
    with pytest.raises(ValueError, match=r"to\."):
        broker.sender(broker.orders(MINE))


def test_who_is_expelled_loses_the_right_to_connect_first() -> None:
    first, *rest = broker.expel(MINE)
    assert (first.method, first.path) == ("DELETE", f"/users/{MINE}")
    made = broker.admit(MINE, "node-other")[0]
    assert made.body is not None
    for kind in ("queues", "exchanges"):
        mine = {f"/{kind}/{broker.VHOST}/{one['name']}" for one in made.body[kind] if one["name"].endswith(MINE)}
        assert mine and mine <= {one.path for one in rest}, "what was made is taken away"


def test_who_is_admitted_can_connect_last() -> None:
    *places, logins = [one.body or {} for one in broker.admit(MINE)]
    assert {kind for body in places for kind in body} == {"queues", "exchanges", "bindings"}
    assert {kind: len(made) for kind, made in logins.items()} == {"users": 1, "permissions": 1}


def test_only_certificates_and_only_tls() -> None:
    text = broker.configuration("192.0.2.1", 5671, 15672, {"cacertfile": "/ca.pem"}, "/definitions.json")
    lines = dict(line.split(" = ") for line in text.splitlines())
    assert lines["listeners.tcp"] == "none" and lines["listeners.ssl.1"] == "192.0.2.1:5671"
    assert [lines[one] for one in lines if one.startswith("auth_mechanisms")] == ["EXTERNAL"]
    assert lines["ssl_options.fail_if_no_peer_cert"] == "true" and lines["ssl_options.verify"] == "verify_peer"
    assert lines["management.tcp.ip"] == "127.0.0.1"
    users = broker.definitions("3.10.8", "x")["users"]
    assert [one["name"] for one in users] == [broker.HUB], "no guest"


def test_a_path_in_the_environment_is_one_word() -> None:
    text = broker.environment("/a folder/rabbitmq.conf", "/a'b/plugins")
    assert "RABBITMQ_CONFIG_FILE='/a folder/rabbitmq.conf'\n" in text
    shown = subprocess.run(
        ["sh"], input=f'{text}printf %s "$RABBITMQ_ENABLED_PLUGINS_FILE"', capture_output=True, text=True
    )
    assert (shown.stdout, shown.stderr) == ("/a'b/plugins", "")

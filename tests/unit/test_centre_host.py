"""What the tests of a centre on a production-like machine read: documents, and the output of programs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import centre_host
import prodhost
import prodhost_machine
import pytest
from production_run import CASES, LISTS

from slicemgr import config

SOCKETS = """\
LISTEN 0      128          0.0.0.0:5671       0.0.0.0:*    users:(("beam.smp",pid=812,fd=37))
LISTEN 0      244        127.0.0.1:5432       0.0.0.0:*    users:(("postgres",pid=514,fd=6))
LISTEN 0      244            [::1]:5432          [::]:*    users:(("postgres",pid=514,fd=5))
LISTEN 0      4096   127.0.0.53%lo:53         0.0.0.0:*    users:(("systemd-resolve",pid=400,fd=18))
LISTEN 0      4096               *:4369             *:*    users:(("epmd",pid=700,fd=3),("systemd",pid=1,fd=66))
LISTEN 0      511             [::]:80            [::]:*    users:(("nginx",pid=520,fd=7),("nginx",pid=519,fd=7))
"""


def test_the_programs_at_each_place() -> None:
    found = centre_host.listening(SOCKETS)
    assert found["0.0.0.0", 5671] == {"beam.smp"} and found["::1", 5432] == found["127.0.0.1", 5432] == {"postgres"}
    assert found["127.0.0.53", 53] == {"systemd-resolve"} and found["*", 4369] == {"epmd", "systemd"}
    assert len(found) == 6


def test_what_other_hosts_reach() -> None:
    found = centre_host.reachable(centre_host.listening(SOCKETS))
    assert found == {5671: {"beam.smp"}, 4369: {"epmd", "systemd"}, 80: {"nginx"}}


def test_the_exposure_of_a_unit() -> None:
    text = "✗ PrivateNetwork=  0.5\n\n→ Overall exposure level for slicemgr-hub.service: 3.8 OK :-)\n"
    assert centre_host.exposure(text) == 3.8
    with pytest.raises(ValueError, match="no exposure level"):
        centre_host.exposure("Failed to connect to bus")


def test_the_documented_packages_are_those_of_the_tree() -> None:
    assert prodhost.centre_packages() == ["nginx", "postgresql", "rabbitmq-server"]


def test_the_documented_settings_are_those_of_the_machine() -> None:
    text = (prodhost.REPO / "tools" / "units" / "slicemgr.toml").read_text()
    made = config.parse(f"{text}\n{centre_host.settings_of_proxy()}".encode(), centre_host.SETTINGS)
    assert (made.web.url, made.web.proxies) == (f"https://{prodhost_machine.NAME}", 1)
    assert (made.node.name, made.node.address) == (centre_host.OWN, prodhost_machine.ADDRESS)
    (line,) = centre_host.documented(prodhost.NODES, prodhost.CENTRE, "PGPASSWORD=")
    assert line.endswith(f" --broker {prodhost_machine.NAME}:5671")
    add, *_ = centre_host.documented(prodhost.NODES, "In five lines", "slicectl ")
    assert add.split()[:4] == ["slicectl", "node", "add", centre_host.NODE]


def test_a_command_that_is_not_documented_any_more_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## Here\n\n    one --with this\n    two\n\n## There\n\n    three\n")
    assert centre_host.documented(page, "Here", "two", "one ") == ["one --with this", "two"]
    with pytest.raises(ValueError, match="no command begins with 'three'"):
        centre_host.documented(page, "Here", "one", "three")


def test_a_centre_is_removed_by_other_commands_than_a_node() -> None:
    commands = prodhost.sort_commands(prodhost.commands_below(prodhost.INSTALL.read_text(), prodhost.SECTION))
    text = prodhost.INSTALL.read_text()
    (start, node), (same, centre) = (prodhost.packaged_commands(text, commands, centre=one) for one in (False, True))
    assert start == same and set(node) < set(centre)
    assert "apt -y purge 'slicemgr*'" in node
    assert centre.index("systemctl stop rabbitmq-server") < centre.index("apt -y purge 'slicemgr*'")


def test_a_centre_from_source_is_removed_without_a_purge() -> None:
    removal = prodhost.source_centre_removal()
    node = prodhost.commands_below(prodhost.INSTALL.read_text(), prodhost.REMOVAL)
    assert set(node) < set(removal) and not any("purge" in one for one in removal)
    order = ["systemctl stop rabbitmq-server", "systemctl disable --now slicemgr-signer slicemgr-hub"]
    order += ["userdel slicemgr-hub", *node]
    order += ["runuser -u postgres -- dropdb slicemgr", "systemctl start rabbitmq-server"]
    again = removal.index("runuser -u postgres -- dropdb slicemgr") - 1
    assert removal[again] == "systemctl daemon-reload", "without the drop-in of epmd.socket"
    assert [one for number, one in enumerate(removal) if one in order and number != again] == order
    (hub, user) = centre_host.documented(prodhost.NODES, "Connect nodes", "install ", "systemd-sysusers ")
    assert "/etc/sysusers.d/slicemgr-hub.conf" in hub and user == "systemd-sysusers slicemgr-hub.conf"


def test_the_settings_of_the_second_host_are_valid(tmp_path: Path) -> None:
    text = (prodhost.REPO / "tools" / "units" / "slicemgr.toml").read_text()
    made = tomllib.loads(centre_host.settings_of_second_host(text))
    assert made["node"] == {"name": centre_host.NODE, "address": centre_host.NODE_ADDRESS}
    assert made["importer"] == tomllib.loads(text)["importer"]


def test_every_kind_of_machine_has_tests() -> None:
    assert LISTS.keys() == CASES.keys() == set(prodhost.KINDS)
    assert all((prodhost.REPO / one.partition("::")[0]).exists() for lists in LISTS.values() for one in sum(lists, ()))

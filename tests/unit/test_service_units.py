"""The systemd units: what they start exists, and all but the agent run without privileges that they do not need."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from slicemgr.config import CENTRE, Config
from slicemgr.main import cli

UNITS = {one.stem: one for one in (Path(__file__).parents[2] / "tools/units").glob("*.service")}
CONFINED = sorted(UNITS.keys() - {"slicemgr-agent"})


def settings(unit: str, section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNITS[unit].read_text())
    return parser[section]


@pytest.mark.parametrize("unit", sorted(UNITS))
def test_each_starts_the_command_of_its_name(unit: str) -> None:
    command = unit.removeprefix("slicemgr-")
    assert settings(unit)["ExecStart"] == f"/opt/slicemgr/bin/slicemgr {command}"
    assert command in cli.commands


@pytest.mark.parametrize("unit", CONFINED)
def test_it_is_confined(unit: str) -> None:
    found = settings(unit)
    assert found["CapabilityBoundingSet"] in ("", "CAP_DAC_OVERRIDE")
    assert found["NoNewPrivileges"] == "yes" and found["ProtectSystem"] == "strict"
    assert found["RestrictAddressFamilies"] == "AF_UNIX AF_INET AF_INET6"


@pytest.mark.parametrize("unit", sorted(UNITS))
def test_systemd_does_not_give_up_while_the_database_is_away(unit: str) -> None:
    """Whose own default is not to start a unit a sixth time within 10 seconds."""
    found = settings(unit)
    assert found["Restart"] == "on-failure"
    assert 5 * float(found["RestartSec"]) > 10


def test_the_programs_that_set_back_what_the_agent_has_set_outlive_it() -> None:
    assert settings("slicemgr-agent")["KillMode"] == "process"


@pytest.mark.parametrize("unit", [one for one in sorted(UNITS) if "ExecStartPre" in settings(one)])
def test_there_is_time_for_a_migration(unit: str) -> None:
    """systemd's own limit is 90 seconds."""
    assert settings(unit)["ExecStartPre"].endswith("/opt/slicemgr/bin/slicemgr init")
    assert settings(unit)["TimeoutStartSec"] == "5min"


def test_the_hub_is_neither_root_nor_the_user_of_the_web_process() -> None:
    hub, web = settings("slicemgr-hub"), settings("slicemgr-web")
    assert hub["User"] == "slicemgr-hub" != web["User"]
    assert hub["CapabilityBoundingSet"] == "" and "ReadWritePaths" not in hub
    assert f"u {hub['User']} " in (UNITS["slicemgr-hub"].with_name("sysusers-hub.conf")).read_text()


def test_a_host_that_has_joined_has_a_link_and_no_web_page() -> None:
    condition = f"{Config().membership_dir}/{CENTRE}"
    assert settings("slicemgr-link", "Unit")["ConditionPathExists"] == condition
    assert settings("slicemgr-web", "Unit")["ConditionPathExists"] == f"!{condition}"

"""A host becomes the centre of a testbed by the documented commands, and withstands the faults of its parts.

The second host that joins has no agent: see SecondHost. The slice `kept` outlives the tests and the reboot.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import demo
import prodhost
import pytest
from centre_host import (
    LONG,
    NODE,
    NODE_ADDRESS,
    SERVICES,
    SETTINGS,
    UNITS,
    CentreHost,
    Listening,
    SecondHost,
    documented,
    exposure,
    reachable,
    settings_of_proxy,
    status,
)
from test_units import init_of
from testbed import STARTED, eventually

pytestmark = pytest.mark.timeout(5400)

LEFT = Path("/opt/tests/left.json")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
AUTHORITY, HUB = Path("/var/lib/slicemgr/authority"), Path("/var/lib/slicemgr/hub")
BROKER = Path("/etc/slicemgr/rabbitmq")
PACKAGED = Path("/usr/lib/slicemgr")  # absent if the machine was installed from source
TLS = Path("/etc/ssl/slicemgr")  # as in tools/nginx/slicemgr.conf
DAC_OVERRIDE = 1 << 1
# Of `systemd-analyze security`, in Debian 12; the agent, which is not confined, has 9 or more.
EXPOSURES = {"web": 3.8, "hub": 3.8, "signer": 4.3, "link": 4.3}
UNCONFINED = 9.0


@dataclass(frozen=True)
class Made:
    """before: the ports when RabbitMQ had Debian's settings. The sliver of `kept` had its init and its start then.

    settings: before the machine was a centre.
    """

    centre: CentreHost
    told: str
    before: Listening
    init: int
    started: str
    settings: str


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """The conversion, with a running sliver."""
    centre = CentreHost()
    centre.__enter__()
    centre.start()
    centre.create("kept", "--memory", "128M")
    init, started = init_of(centre, "kept"), centre.inside("kept", STARTED)
    for service in SERVICES:
        eventually(lambda service=service: centre.property(service, "ActiveState") == "active", service, LONG)  # type: ignore[misc]
    settings, before = SETTINGS.read_text(), centre.places()
    with SETTINGS.open("a") as file:
        file.write(f"\n{settings_of_proxy()}")
    centre.sh("systemctl restart slicemgr-web")
    eventually(lambda: demo.answers(centre.url), "the web process answers", 300)
    centre.sh("\n".join(documented(prodhost.INSTALL, "PostgreSQL", "runuser ")))
    if not PACKAGED.exists():
        centre.sh("\n".join(documented(prodhost.NODES, "Connect nodes", "install ", "systemd-sysusers ")))
    (line,) = documented(prodhost.NODES, prodhost.CENTRE, "PGPASSWORD=")
    checked = centre.sh(f"{line} --check", LONG)
    assert "FAIL" not in checked, checked
    told = centre.sh(line, 3 * LONG)
    # As `make testbed` does it: the page has the certificate of the broker, which is for the same name.
    centre.sh(f"install -d {TLS}")
    centre.sh(f"cp {BROKER}/certificate.pem {TLS}/fullchain.pem && install -m 600 {BROKER}/key.pem {TLS}/privkey.pem")
    centre.sh("\n".join(documented(prodhost.INSTALL, prodhost.PROXY, "install ", "rm ")))
    centre.sh("systemctl reload nginx")
    yield Made(centre, told, before, init, started, settings)


@pytest.fixture(scope="module")
def centre(made: Made) -> CentreHost:
    return made.centre


@pytest.fixture(scope="module")
def joined(made: Made) -> SecondHost:
    """A second host that has joined by the documented commands, and whose link has reported."""
    add, join, _, start, _ = documented(prodhost.NODES, "In five lines", "slicectl ", "slicemgr ", "systemctl ")
    line, since = made.centre.sh(add).strip(), now()
    assert line.startswith(join.partition("TOKEN#CA")[0]), (line, join)
    own = made.centre.try_sh(line)
    assert own.returncode != 0 and "centre" in own.stderr, "the host of the centre does not join"
    host = SecondHost(made.centre)
    host.make(made.settings)
    done = host.run(line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "systemctl enable --now slicemgr-link" in start.replace("slicemgr-agent ", "")
    made.centre.sh("systemctl enable --now slicemgr-link")
    eventually(lambda: made.centre.reported(NODE, "beat_at", since), "the link reports", 300)
    return host


# the conversion


def test_the_sliver_runs_through_the_conversion(made: Made) -> None:
    assert made.told.splitlines()[-1].startswith("This machine is the centre of a testbed"), made.told
    assert init_of(made.centre, "kept") == made.init
    assert made.centre.inside("kept", STARTED) == made.started
    made.centre.agrees()


def test_slices_are_created_and_deleted(centre: CentreHost) -> None:
    created = centre.create("after", "--memory", "128M")
    assert created["state"] == "running"
    assert centre.inside("after", "hostname") == "after-0\n"
    centre.ok("delete", "after")
    centre.agrees()


def test_the_units_are_active_and_enabled(centre: CentreHost) -> None:
    for unit in (*(f"slicemgr-{one}" for one in UNITS), *SERVICES):
        assert (unit, centre.property(unit, "ActiveState")) == (unit, "active")
        assert (unit, centre.property(unit, "UnitFileState")) == (unit, "enabled")
    found = {name: centre.property("slicemgr-link", name) for name in ("ActiveState", "ConditionResult")}
    assert found["ActiveState"] == "inactive", "the machine has not joined a testbed"


# who runs what


def test_the_hub_and_the_web_process_have_no_privileges(centre: CentreHost) -> None:
    for unit, user in (("hub", "slicemgr-hub"), ("web", "slicemgr")):
        process = centre.box.daemon(unit)
        assert process is not None
        found = status(process)
        assert found["Uid"] == [str(pwd.getpwnam(user).pw_uid)] * 4
        assert {int(found[name][0], 16) for name in ("CapBnd", "CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        assert found["NoNewPrivs"] == ["1"]
        assert str(grp.getgrnam("slicemgr").gr_gid) in found["Groups"] + found["Gid"]


def test_the_signer_has_one_capability_and_the_agent_all(centre: CentreHost) -> None:
    signer, agent = (status(centre.box.daemon(unit) or 0) for unit in ("signer", "agent"))
    assert signer["Uid"] == agent["Uid"] == ["0"] * 4
    assert {int(signer[name][0], 16) for name in ("CapBnd", "CapEff")} == {DAC_OVERRIDE}
    assert int(agent["CapEff"][0], 16) > DAC_OVERRIDE


def test_each_process_reads_its_own_key_only(centre: CentreHost) -> None:
    """The hub and the web process cannot read the key of the authority, nor the web process that of the hub."""

    def reads(user: str, path: Path, groups: str = "-G slicemgr") -> bool:
        return centre.try_sh(f"runuser -u {user} {groups} -- cat {path}").returncode == 0

    assert reads("slicemgr-hub", HUB / "key.pem") and reads("slicemgr-hub", SETTINGS) and reads("slicemgr", SETTINGS)
    assert not reads("slicemgr-hub", AUTHORITY / "key.pem") and not reads("slicemgr", AUTHORITY / "key.pem")
    assert not reads("slicemgr", HUB / "key.pem")
    assert not reads("nobody", SETTINGS, ""), "it has the password of the database"
    assert (SETTINGS.stat().st_mode & 0o7777, SETTINGS.owner(), SETTINGS.group()) == (0o640, "root", "slicemgr")


def test_others_reach_the_proxy_and_the_broker_alone(made: Made) -> None:
    """The control is the same machine while RabbitMQ had Debian's settings."""
    assert {4369, 5672, 25672} <= reachable(made.before).keys()
    found = made.centre.places()
    open_to_others = reachable(found)
    assert open_to_others.keys() == {80, 443, 5671}, found
    assert open_to_others[80] == open_to_others[443] == {"nginx"}
    assert open_to_others[5671] == {"beam.smp"}
    inside = {port for address, port in found if address == "127.0.0.1"}
    assert {4369, 5432, 8480, 15672, 25672} <= inside, found


def test_the_units_are_confined(centre: CentreHost) -> None:
    found = {
        unit: exposure(centre.sh(f"systemd-analyze security --no-pager slicemgr-{unit}", 300))
        for unit in (*EXPOSURES, "agent")
    }
    agent = found.pop("agent")
    assert agent >= UNCONFINED, "the control"
    assert {unit: value for unit, value in found.items() if value > EXPOSURES[unit]} == {}, found


# a second host, and faults


def test_a_second_host_joins_and_its_link_reports(joined: SecondHost, centre: CentreHost) -> None:
    link = status(centre.box.daemon("link") or 0)
    assert link["Uid"] == ["0"] * 4
    assert {int(link[name][0], 16) for name in ("CapBnd", "CapEff")} == {DAC_OVERRIDE}
    shown = json.loads(centre.ok("node", "show", NODE, "-f", "json"))
    assert (shown["site"], shown["state"]) == ("tuebingen", "joined"), "no agent has reported"
    network = Path(f"/proc/{centre.box.daemon('link')}/ns/net").stat().st_ino
    assert network != Path("/proc/1/ns/net").stat().st_ino
    connected = centre.sh("ss -Htn state established sport = :5671")
    assert NODE_ADDRESS in connected, connected


@pytest.mark.parametrize("unit", [*UNITS, "link"])
def test_a_killed_unit_comes_back(joined: SecondHost, centre: CentreHost, unit: str) -> None:
    old, others = centre.box.daemon(unit), [one for one in (*UNITS, "link") if one != unit]
    before = centre.processes(*others)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    eventually(lambda: centre.box.daemon(unit) not in (None, old), f"{unit} is back", 300)
    eventually(lambda: centre.property(f"slicemgr-{unit}", "ActiveState") == "active", f"{unit} is ready", 300)
    assert int(centre.property(f"slicemgr-{unit}", "NRestarts")) >= 1
    centre.works(now())
    assert centre.processes(*others) == before, "the other units run on"


def test_the_signer_works_after_its_restart(joined: SecondHost, centre: CentreHost) -> None:
    """Certificates are issued by the process that systemd started."""
    line = centre.sh("slicectl node add node8").strip()
    place = "/tmp/node8"
    program = (
        "import sys; from pathlib import Path; from slicemgr.link import join; "
        f"print(join.join(sys.argv[1], sys.argv[2], Path('{place}')).node)"
    )
    url, token = line.split()[-2:]
    told = centre.sh(f"{PACKAGED}/bin/python3 -c \"{program}\" {url} '{token}'", 300)
    assert told == "node8\n"
    centre.sh(f"slicectl node remove node8 --yes && rm -r {place}")


def test_all_connect_again_to_a_broker_that_was_restarted(joined: SecondHost, centre: CentreHost) -> None:
    before, old = centre.processes(*UNITS, "link"), centre.property("rabbitmq-server", "MainPID")
    centre.sh("systemctl restart rabbitmq-server", 2 * LONG)
    assert centre.property("rabbitmq-server", "MainPID") != old
    centre.works(now())
    assert centre.processes(*UNITS, "link") == before
    assert reachable(centre.places()).keys() == {80, 443, 5671}


def test_all_connect_again_to_a_database_that_was_restarted(joined: SecondHost, centre: CentreHost) -> None:
    before = centre.processes(*UNITS, "link")
    old = centre.sh("pgrep -o -u postgres -x postgres")
    centre.sh("systemctl restart postgresql", LONG)
    assert centre.sh("pgrep -o -u postgres -x postgres") != old
    centre.works(now())
    assert centre.processes(*UNITS, "link") == before


def test_slices_work_after_all_faults(made: Made, joined: SecondHost) -> None:
    assert init_of(made.centre, "kept") == made.init, "it ran through all of them"
    made.centre.create("late", "--memory", "128M")
    assert made.centre.inside("late", "hostname") == "late-0\n"
    made.centre.ok("delete", "late")
    made.centre.agrees()


def test_no_unit_has_an_error_that_nobody_expected(joined: SecondHost, centre: CentreHost) -> None:
    told = centre.sh("journalctl --no-pager --boot --unit 'slicemgr-*'")
    assert "Started slicemgr-hub" in told, "the control: it is the log of the units"
    assert "Traceback" not in told, told[told.index("Traceback") :][:3000]


def test_it_is_left_for_the_reboot(made: Made, joined: SecondHost) -> None:
    made.centre.inside("kept", "echo precious > /root/data; sync")
    LEFT.write_text(json.dumps({"boot": BOOT_ID.read_text(), "kept": made.centre.show("kept")}))

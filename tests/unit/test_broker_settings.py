"""Which settings of a broker are outdated, how its file is updated, and where admins see it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_service import Service
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent.checks import broker as broker_check
from slicemgr.config import Config, HubConfig, NodeConfig
from slicemgr.errors import Failed, Refused
from slicemgr.hub import broker_files
from slicemgr.hub.alarms import Alarms
from slicemgr.ipc import broker_state, timed_file
from slicemgr.ipc.broker_state import DISK, MEMORY, BrokerState
from slicemgr.main import cli
from slicemgr.policy import broker, broker_settings
from slicemgr.service.nodes import broker_alarms
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web.broker_metrics import BrokerMetrics

NEW = broker.configuration("192.0.2.1", 5671, 15672, {}, "/definitions.json")
OLD = re.sub(r"management.rates_mode.*\n", "", NEW).replace(
    "vm_memory_high_watermark.relative = 0.4", "vm_memory_high_watermark.absolute = 1GB"
)
FINE = BrokerState(300 << 20, 9000 << 20, 5 << 30, 200 << 20, folder="/etc/slicemgr/rabbitmq")


def test_the_file_of_an_earlier_version_becomes_that_of_this_one() -> None:
    found = broker_settings.updated(OLD)
    assert sorted(found.text.splitlines()) == sorted(NEW.splitlines())
    assert found.removed == ["vm_memory_high_watermark.absolute = 1GB"]
    assert found.added == ["management.rates_mode = none", "vm_memory_high_watermark.relative = 0.4"]
    again = broker_settings.updated(found.text)
    assert (again.text, again.added, again.kept) == (found.text, [], [])


@pytest.mark.parametrize(
    "own",
    [
        "vm_memory_high_watermark.absolute = 4GB",
        "vm_memory_high_watermark.relative=0.7",
        "management.rates_mode = basic",
        "disk_free_limit.relative = 1.0  # as much as memory",
    ],
)
def test_lines_of_an_administrator_stay(own: str) -> None:
    """Also comments, and settings of which slicemgr knows nothing."""
    name = own.partition("=")[0].strip().rpartition(".")[0]
    others = [line for line in NEW.splitlines() if not line.startswith(name) or name == "management"]
    others = [line for line in others if not line.startswith("management.rates_mode") or "rates" not in own]
    more = ["# management.rates_mode = none", "vm_memory_high_watermark_paging_ratio = 0.6", "log.file.level = debug"]
    text = "\n".join([*others, *more, own]) + "\n"
    found = broker_settings.updated(text)
    assert (found.text, found.added, found.kept) == (text, [], [own])


@given(st.lists(st.sampled_from([*OLD.splitlines(), *NEW.splitlines(), "# a comment", "", "heartbeat = 30"])))
def test_an_update_is_complete_and_repeatable(lines: list[str]) -> None:
    found = broker_settings.updated("".join(f"{one}\n" for one in lines))
    after = found.text.splitlines()
    assert set(broker_settings.lines()) <= set(after), "nothing here is an administrator's"
    assert not found.kept and broker_settings.updated(found.text).added == []
    assert [one for one in lines if one not in found.removed] == [one for one in after if one not in found.added]


def test_only_what_an_earlier_version_wrote_is_outdated() -> None:
    assert broker_settings.outdated("none", 9 << 30) == []
    assert broker_settings.outdated("none", 512 << 20) == [], "the choice of an administrator, or a small machine"
    rates, memory = broker_settings.outdated("basic", 10**9)
    assert "rates_mode is basic" in rates and "40% of the machine's" in memory


# --- the file -------------------------------------------------------------------------------------------------------


def settings_in(folder: Path) -> Config:
    node = NodeConfig(state_dir=folder / "state", run_dir=folder / "run")
    return replace(Config(), node=node, hub=HubConfig(broker="testbed.example:5671"))


def test_the_command_changes_the_file_in_place(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text(OLD + "log.file.level = debug\n")
    file.chmod(0o640)
    settings = tmp_path / "slicemgr.toml"
    settings.write_text('hub.broker = "testbed.example:5671"\n')
    words = ["--config", str(settings), "broker-files", str(tmp_path), "--update"]
    said = CliRunner().invoke(cli, words)
    assert said.exit_code == 0, said.output
    assert "+ management.rates_mode = none" in said.output and "restart RabbitMQ" in said.output
    assert "log.file.level = debug" in file.read_text() and file.stat().st_mode & 0o777 == 0o640
    assert file.stat().st_uid == os.getuid()
    assert "nothing to change" in CliRunner().invoke(cli, words).output
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rabbitmq.conf", "slicemgr.toml"]


def test_a_link_in_the_folder_of_the_broker_is_not_followed(tmp_path: Path) -> None:
    """The folder belongs to the user of the broker, and the command runs as root."""
    secret = tmp_path / "secret"
    secret.write_text(OLD)
    folder = tmp_path / "rabbitmq"
    folder.mkdir()
    (folder / "rabbitmq.conf").symlink_to(secret)
    with pytest.raises(Refused, match="cannot be read"):
        broker_files.update(folder)
    (folder / "rabbitmq.conf").unlink()
    (folder / "rabbitmq.conf").write_text(secret.read_text())
    assert broker_files.update(folder).added, "the control"
    assert secret.read_text() == OLD


# --- where admins see it --------------------------------------------------------------------------------------------


def test_the_state_of_the_broker_for_others_on_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hub" / "broker.json"
    assert broker_state.read(file) is None
    state = replace(FINE, alarms=(MEMORY, DISK), outdated=("one", "two"))
    broker_state.write(file, state)
    assert broker_state.read(file) == state
    for content in ("[]", "null", "{", "{}", '{"alarms": 3}'):
        timed_file.write(file, content, 0o644)
        assert broker_state.read(file) is None
    broker_state.write(file, state)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + broker_state.VALID + 1)
    assert broker_state.read(file) is None, "the hub does not work any more"


def test_doctor_names_the_remedy(tmp_path: Path) -> None:
    config = settings_in(tmp_path)
    assert broker_check.checks(replace(config, hub=HubConfig())) == [], "there is no broker"
    [unknown] = broker_check.checks(config)
    assert unknown.ok is None and "slicemgr hub" in unknown.remedy
    broker_state.write(config.broker_file, FINE)
    [fine] = broker_check.checks(config)
    assert fine.ok is True and fine.detail == "300 of 9000 MiB of memory are used"
    old = broker_check.judge(replace(FINE, outdated=("rates_mode is basic",)))
    assert old.ok is None and "`slicemgr broker-files /etc/slicemgr/rabbitmq --update`" in old.remedy
    full = broker_check.judge(replace(FINE, alarms=(DISK,), outdated=("rates_mode is basic",)))
    assert full.ok is False and "5120 MiB of disk are free, and 200 are needed" in full.detail


def sampled(file: Path) -> dict[str, float]:
    samples = [one for family in BrokerMetrics(file).collect() for one in family.samples]
    return {one.name + "".join(one.labels.values()): one.value for one in samples}


def test_metrics_have_the_alarms(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    assert sampled(file) == {}, "no hub works here"
    broker_state.write(file, replace(FINE, alarms=(MEMORY,), outdated=("one",)))
    found = sampled(file)
    assert (found["slicemgr_broker_alarmmemory"], found["slicemgr_broker_alarmdisk"]) == (1, 0)
    assert found["slicemgr_broker_memory_limit_bytes"] == 9000 << 20
    assert found["slicemgr_broker_outdated_settings"] == 1


def test_the_log_names_outdated_settings_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [None, replace(FINE, outdated=("rates_mode is basic",))]
    alarms = Alarms(SimpleNamespace(state=lambda: answers[-1]), tmp_path / "broker.json")  # type: ignore[arg-type]
    for _ in range(3):
        alarms.look()
    assert caplog.text.count("settings of the broker are outdated") == 1
    assert "broker-files /etc/slicemgr/rabbitmq --update" in caplog.text


def test_admins_get_one_mail_when_an_alarm_begins(tmp_path: Path) -> None:
    full = replace(FINE, alarms=(MEMORY,))
    answers: list[Any] = [full, FINE, full, full, FINE]  # from the last
    with Service(tmp_path / "service") as service:
        config = replace(service.config, mail=replace(service.config.mail, server="mail.example.org"))
        with service.store.write() as c:
            c.execute(t.users.update().where(t.users.c.admin).values(email="root@example.org"))
            c.execute(
                t.users.insert().values(name="alice", admin=False, email="alice@example.org", created_at=utcnow())
            )
        api: Any = SimpleNamespace(state=answers.pop)
        alarms = Alarms(api, tmp_path / "broker.json", partial(broker_alarms.report, service.store, config))
        alarms.look()
        assert service.count("mails") == 0
        for _ in range(4):
            alarms.look()
        (letter,) = service.dump()["mails"]
    assert (letter.recipient, letter.subject) == ("root@example.org", "the broker takes no messages")
    assert "300 of 9000 MiB of memory are used" in letter.body


def test_a_broker_that_does_not_answer_has_no_alarm(tmp_path: Path) -> None:
    """Then its connections end as well, and the hub knows that it receives nothing."""
    answers: list[Any] = [replace(FINE, alarms=(MEMORY,))]

    def state() -> BrokerState:
        if not answers:
            raise Failed("it does not answer")
        return answers.pop()  # type: ignore[no-any-return]

    alarms = Alarms(SimpleNamespace(state=state), tmp_path / "broker.json")  # type: ignore[arg-type]
    alarms.look()
    assert alarms.raised == ["300 of 9000 MiB of memory are used"]
    with pytest.raises(Failed):
        alarms.look()
    assert not alarms.raised

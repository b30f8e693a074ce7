"""The steps from one machine to the centre of a testbed. Until `stop`, users notice nothing; slivers never do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial

from slicemgr import store
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.private_files import replace
from slicemgr.conversion import kept_files, rabbitmq
from slicemgr.conversion.conversion import Conversion, Step
from slicemgr.conversion.kept_files import Facts
from slicemgr.conversion.units import AGENT, BROKER, HUB, SIGNER, WEB
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.hub import broker_files, management, signer
from slicemgr.hub.management import Management
from slicemgr.ipc.unix_socket import user_ids
from slicemgr.link import centre
from slicemgr.policy import broker
from slicemgr.stopped_service import stopped
from slicemgr.store import copy
from slicemgr.store.updates import utcnow
from slicemgr.web import server

_PATIENCE = 300.0  # seconds until a service that was started works
_INTERVAL = 0.5


def steps() -> tuple[Step, ...]:
    """In their order. After `settings`, a reboot starts the centre, and the record is deleted."""
    return (
        Step("authority", "certificate authority", _make_authority, _remove_authority, _look_for_authority),
        Step("broker files", "files of broker and hub", _write_broker_files, _remove_broker_files),
        Step("broker", "RabbitMQ with these files", _start_broker, _restore_broker, _look_at_broker),
        Step("enable", "signer and hub at each boot", _enable, _disable, _enabled),
        Step("stop", "web and agent stopped", _stop, _start_again, _active),
        Step("copy", "all rows copied to PostgreSQL", _copy, _empty, _refuse_full),
        Step("settings", "settings of a centre", _write_settings, _restore_settings, _keep_settings, lasting=True),
        Step("start", "signer, hub and agent", _start, _stop_started),
        Step("web", "web page", _start_web, _stop_web),
    )


# authority


def _look_for_authority(conversion: Conversion) -> Facts:
    return {"existed": conversion.config.authority_dir.exists()}


def _make_authority(conversion: Conversion) -> None:
    if not conversion.config.authority_dir.exists():
        Authority.create(conversion.config.authority_dir, utcnow())


def _remove_authority(conversion: Conversion) -> None:
    if not conversion.facts["authority"]["existed"]:
        shutil.rmtree(conversion.config.authority_dir, ignore_errors=True)


# broker


def _write_broker_files(conversion: Conversion) -> None:
    authority = Authority.load(conversion.config.authority_dir)
    broker_files.write(conversion.config_after, authority, rabbitmq.FOLDER, conversion.listen)


def _remove_broker_files(conversion: Conversion) -> None:
    for folder in (rabbitmq.FOLDER, conversion.config.hub_dir):
        shutil.rmtree(folder, ignore_errors=True)


def _look_at_broker(conversion: Conversion) -> Facts:
    return rabbitmq.look(conversion.units)


def _start_broker(conversion: Conversion) -> None:
    rabbitmq.configure(conversion.units, conversion.facts["broker"])
    _wait(conversion, BROKER, partial(_answers, conversion))


def _restore_broker(conversion: Conversion) -> None:
    rabbitmq.restore(conversion.units, conversion.facts["broker"])


def _api(conversion: Conversion) -> Management:
    host, _, port = conversion.config.hub.management.rpartition(":")
    password = management.password(conversion.config.hub_dir / broker_files.PASSWORD)
    return Management(host.strip("[]"), int(port), password)


def _answers(conversion: Conversion) -> bool:
    return broker.HUB in _api(conversion).users()


# services


def _enabled(conversion: Conversion) -> Facts:
    return {unit: conversion.units.enabled(unit) for unit in (SIGNER, HUB)}


def _enable(conversion: Conversion) -> None:
    conversion.units.enable(SIGNER, HUB)


def _disable(conversion: Conversion) -> None:
    if units := [unit for unit, enabled in conversion.facts["enable"].items() if not enabled]:
        conversion.units.disable(*units)


def _active(conversion: Conversion) -> Facts:
    return {unit: conversion.units.active(unit) for unit in (AGENT, SIGNER, WEB)}


def _stop(conversion: Conversion) -> None:
    for unit in (WEB, AGENT, SIGNER):  # no new requests first
        conversion.units.stop(unit)


def _start_again(conversion: Conversion) -> None:
    for unit, active in conversion.facts["stop"].items():
        if active:
            conversion.units.start(unit)


def _start(conversion: Conversion) -> None:
    """The hub may end leases, and the agent may do operations: both have the same effect again if this is undone."""
    for unit in (SIGNER, HUB, AGENT):
        conversion.units.start(unit)
    _wait(conversion, HUB, lambda: _api(conversion).connected(broker.HUB))


def _stop_started(conversion: Conversion) -> None:
    conversion.units.stop(HUB, AGENT, SIGNER)


def _start_web(conversion: Conversion) -> None:
    """Last: users change nothing in the new database before everything else works."""
    conversion.units.start(WEB)
    _wait(conversion, WEB, partial(_serves, conversion))


def _serves(conversion: Conversion) -> bool:
    """Whether it has the new settings and the new database."""
    context = centre.trust(Authority.load(conversion.config.authority_dir).certificate)
    answer = centre.call(server.url(conversion.config), "GET", "/authority", None, context)
    return answer.get("broker") == conversion.broker


def _stop_web(conversion: Conversion) -> None:
    conversion.units.stop(WEB)


def _wait(conversion: Conversion, unit: str, works: Callable[[], bool]) -> None:
    """Raises Failed if the unit ends, or if it does not work in time."""
    end = time.monotonic() + _PATIENCE
    why = "it does not answer"
    while time.monotonic() < end:
        try:
            if works():
                return
        except SlicemgrError as error:
            why = str(error)
            if error.code not in (Code.UNAVAILABLE, Code.FAILED):
                raise
        if not conversion.units.active(unit):
            raise Failed(f"{unit} has ended: {why}", hint=f"see `journalctl -u {unit}`")
        time.sleep(_INTERVAL)
    raise Failed(f"{unit} does not work: {why}", hint=f"see `journalctl -u {unit}`")


# rows and settings


def _refuse_full(conversion: Conversion) -> Facts:
    copy.check_target(conversion.target, conversion.config.store.lock_timeout, "--database")
    return {}


def _copy(conversion: Conversion) -> None:
    config = conversion.config
    with stopped(config):
        copy.copy(config.store_url, conversion.target, config.store.lock_timeout, "--database")
        with store.open(conversion.config_after) as opened:
            signer.prepare(opened, config.authority_dir)


def _empty(conversion: Conversion) -> None:
    copy.empty(conversion.target, conversion.config.store.lock_timeout)


def _keep_settings(conversion: Conversion) -> Facts:
    return {"file": kept_files.keep(conversion.settings)}


def _write_settings(conversion: Conversion) -> None:
    """They contain the password of the database: besides root, only the group of the web process reads them."""
    content = conversion.changed()
    conversion.settings.parent.mkdir(parents=True, exist_ok=True)
    replace(conversion.settings, content, 0, user_ids(conversion.config.web.user)[1], 0o640)


def _restore_settings(conversion: Conversion) -> None:
    kept_files.put_back(conversion.settings, conversion.facts["settings"]["file"])

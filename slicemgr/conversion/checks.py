"""What a conversion needs, checked before anything is changed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from slicemgr import agent_process, store
from slicemgr.agent.checks.result import Check
from slicemgr.certificates.authority import Authority
from slicemgr.conversion import rabbitmq
from slicemgr.conversion.conversion import Conversion
from slicemgr.conversion.units import AGENT, BROKER, HUB, SIGNER, WEB
from slicemgr.drivers.command import CommandFailed
from slicemgr.errors import Code, Refused, SlicemgrError, invalid
from slicemgr.human import size
from slicemgr.ipc.unix_socket import user_ids
from slicemgr.store import copy, incarnation
from slicemgr.store.url import SQLITE, parse

_LEAST = 256 << 20  # bytes for small files and logs
_BROKER_LEAST = 1 << 30  # bytes; RabbitMQ accepts nothing when it lacks room
_GROWTH = 4  # bytes of PostgreSQL, with its log, for each byte of SQLite
_POSTGRESQL = Path("/var/lib/postgresql")


def examine(conversion: Conversion) -> list[Check]:
    """Every check, also after one has failed."""
    checks: tuple[tuple[str, Callable[[Conversion], str]], ...] = (
        ("settings", _settings),
        ("web page", _web),
        ("services", _services),
        ("database", _database),
        ("RabbitMQ", _rabbitmq),
        ("ports", _ports),
        ("authority", _authority),
        ("user of the hub", _hub_user),
        ("room", _room),
    )
    found = [_result(name, check, conversion) for name, check in checks]
    return [*found, _doctor(conversion)]


def _result(name: str, check: Callable[[Conversion], str], conversion: Conversion) -> Check:
    try:
        return Check(name, True, check(conversion))
    except SlicemgrError as error:
        where = f"{error.field}: " if error.field else ""
        return Check(name, False, f"{where}{error.message}", error.hint)
    except (OSError, CommandFailed) as error:
        return Check(name, False, str(error), "run it as root")


def _conflict(message: str, hint: str) -> Refused:
    return Refused(Code.CONFLICT, message, hint=hint)


def _settings(conversion: Conversion) -> str:
    config = conversion.config
    if os.geteuid() != 0:
        raise _conflict("only root can do this", "use sudo")
    if config.joined:
        raise _conflict("this host has joined a testbed", "only a machine that works alone becomes a centre")
    if parse(config.store_url).get_backend_name() != SQLITE:
        hint = "connect nodes as docs/how-to/nodes.md describes"
        raise invalid("store.url", "this machine does not use SQLite", hint)
    if config.hub.broker:
        raise invalid("hub.broker", "is set: this machine is a centre", "add nodes with `slicectl node add`")
    if "kombu" not in sys.modules and importlib.util.find_spec("kombu") is None:
        raise _conflict("the Python package kombu is not installed", "install slicemgr with its extra `testbed`")
    with store.open(config) as opened, opened.read() as c:
        incarnation.refuse_during_hold(c, "become a centre")
    conversion.changed()  # refused if the file cannot be changed
    return f"{conversion.settings} can be changed"


def _web(conversion: Conversion) -> str:
    url = conversion.config.web.url
    if urlsplit(url).scheme != "https":
        hint = "nodes send tokens over TLS alone: see TLS in docs/how-to/install.md"
        raise invalid("web.url", f"{url!r} is not an https URL", hint)
    return f"nodes and users reach it at {url}"


def _services(conversion: Conversion) -> str:
    units = conversion.units
    for unit in (SIGNER, HUB, BROKER):
        if not units.known(unit):
            raise _conflict(f"there is no unit {unit}", "see docs/how-to/install.md")
    for unit in (WEB, AGENT):
        if not units.active(unit):
            raise _conflict(f"{unit} does not run", "start it first, so that this machine is known to work")
    return "web and agent run; signer, hub and broker can be started"


def _database(conversion: Conversion) -> str:
    copy.check_target(conversion.target, conversion.config.store.lock_timeout, "--database")
    return "PostgreSQL answers, and the database is empty"


def _rabbitmq(conversion: Conversion) -> str:
    if not rabbitmq.installed():
        raise _conflict("RabbitMQ is not installed", "apt-get install rabbitmq-server")
    if other := rabbitmq.configured():
        hint = "slicemgr needs a broker for itself; remove the file if nothing else uses it"
        raise _conflict(f"RabbitMQ has settings in {other}", hint)
    for folder in (rabbitmq.FOLDER, conversion.config.hub_dir):
        if folder.exists():
            raise _conflict(f"{folder} exists", "move it away if it is not in use")
    return "installed, and used by nothing else"


def _ports(conversion: Conversion) -> str:
    hub = conversion.config_after.hub
    places = [(conversion.listen, hub.broker), ("127.0.0.1", hub.management)]
    for address, place in places:
        port = int(place.rpartition(":")[2])
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((address, port))
            except OSError as error:
                raise _conflict(f"port {port} of {address}: {error.strerror}", "stop what uses it") from error
    return f"{hub.broker} and {hub.management} are free"


def _authority(conversion: Conversion) -> str:
    if not conversion.config.authority_dir.exists():
        return "is made"
    Authority.load(conversion.config.authority_dir)
    return "is there"


def _hub_user(conversion: Conversion) -> str:
    config = conversion.config
    uid, gid = user_ids(config.hub.user, "hub.user")
    for name, text in (("mail.password_file", config.mail.password_file), ("mail.ca_file", config.mail.ca_file)):
        if text and not _can_read(uid, {gid, user_ids(config.web.user)[1]}, Path(text)):
            hint = f"the hub sends the mail: chgrp {gid} {text} && chmod 640 {text}"
            raise invalid(name, f"{text} cannot be read by {config.hub.user}", hint)
    return config.hub.user


def _can_read(uid: int, gids: Container[int], path: Path) -> bool:
    held = path.stat()
    bit = stat.S_IRUSR if held.st_uid == uid else stat.S_IRGRP if held.st_gid in gids else stat.S_IROTH
    return bool(held.st_mode & bit)


def _room(conversion: Conversion) -> str:
    database = Path(parse(conversion.config.store_url).database or "")
    needed = _LEAST + _GROWTH * sum(one.stat().st_size for one in database.parent.glob(f"{database.name}*"))
    for folder, least in _places(conversion, needed):
        free = shutil.disk_usage(folder).free
        if free < least:
            raise _conflict(f"{folder} has {size(free)} free of {size(least)} that are needed", "make room")
    return f"at least {size(needed)} for the database"


def _places(conversion: Conversion, needed: int) -> Iterator[tuple[Path, int]]:
    yield conversion.config.node.state_dir, _LEAST
    if rabbitmq.DATA.exists():
        yield rabbitmq.DATA, _BROKER_LEAST
    if _POSTGRESQL.exists():  # it may be on another machine
        yield _POSTGRESQL, needed


def _doctor(conversion: Conversion) -> Check:
    failed = [one.name for one in agent_process.checks(conversion.config) if one.ok is False]
    if failed:
        return Check("doctor", False, f"this node lacks something: {', '.join(failed)}", "see `slicectl doctor`")
    return Check("doctor", True, "this node lacks nothing")

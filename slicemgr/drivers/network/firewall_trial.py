"""Whether python-iptables can write the node's rules here: found by writing them where nothing depends on them.

A library that loads is not one that works: python-iptables knows the structures of libxtables by heart, and newer
versions of it changed them. A wrong guess raises, crashes the process, or writes other rules than were meant. So a
process of its own writes them in an empty network namespace, and compares what the kernel then has with what the
host's own `iptables-legacy-restore` makes of the same rules.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from slicemgr import names
from slicemgr.config import NetworkConfig
from slicemgr.drivers import command
from slicemgr.drivers.network.firewall_restore import RestoreProgram
from slicemgr.drivers.network.firewall_rules import LEAF, Published, tables
from slicemgr.drivers.network.firewall_table import Table
from slicemgr.human import printable
from slicemgr.model import PortBlock

_PROGRAM = "slicemgr.drivers.network.firewall_trial"
_TIMEOUT = 60.0  # seconds
_WORKS = "works"
_LONGEST = 300  # characters of a fault


@functools.cache
def fault(network: NetworkConfig) -> str:
    """Why python-iptables cannot write the rules on this host, "" if it can. Found once in a process, by trying."""
    return try_by([sys.executable, "-I", "-m", _PROGRAM], network)


def try_by(program: list[str], network: NetworkConfig) -> str:
    """The same by another program, which is given the network's settings as JSON."""
    request = json.dumps(dataclasses.asdict(network)).encode()
    try:
        answer = command.run(["unshare", "--net", "--", *program], timeout=_TIMEOUT, input=request)
    except command.CommandFailed as error:
        if error.status is None or error.status >= 0:
            return str(error)[:_LONGEST]
        return f"it was ended by signal {-error.status}"
    text = printable(answer.decode(errors="replace").strip())[:_LONGEST]
    return "" if text == _WORKS else text or "it gave no answer"


def examples() -> list[Published]:
    """Slivers whose rules have every form: more slices and blocks than one chain lists, one slice with two slivers."""
    signs = names.ALPHABET[: LEAF + 1]
    tags = [signs[0] + sign * (names.TAG_LENGTH - 1) for sign in (signs[0], *signs)]
    return [
        Published(f"{tag}-{number}", tag, f"192.0.2.{number + 1}", PortBlock(10000 + 20 * number, 20), tags.count(tag))
        for number, tag in enumerate(tags)
    ]


def main() -> None:
    """In the empty network namespace: write what is wrong. Nothing that is raised leaves but by its text."""
    given: dict[str, Any] = json.load(sys.stdin)
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    ipv6 = Path("/proc/thread-self/net/if_inet6").exists()
    wanted = [table for table in tables(examples(), NetworkConfig(**given)) if ipv6 or not table.ipv6]
    try:
        problem = _write(wanted)
    except Exception as error:  # noqa: BLE001 (whatever the library raises)
        problem = f"{type(error).__name__}: {error}"
    sys.stdout.write(problem or _WORKS)


def _write(wanted: list[Table]) -> str:
    """What is wrong with the rules after they were written by python-iptables, "" if nothing is."""
    from slicemgr.drivers.network import firewall_legacy  # needs libxtables and libip4tc, which a host may lack

    with tempfile.NamedTemporaryFile() as lock:
        firewall_legacy.LOCK = Path(lock.name)  # nobody else can write into this namespace
        firewall_legacy.LegacyTables().apply([(table, None) for table in wanted])
        problems = firewall_legacy.LegacyTables().problems(wanted)
    if problems:
        return problems[0]
    if shutil.which("iptables-legacy-restore") is None:
        return ""
    written = _saved(wanted)
    RestoreProgram("-legacy").apply([(table, None) for table in wanted])
    meant = _saved(wanted)
    if written == meant:
        return ""
    wrong = [line for line in written if line not in meant] or [line for line in meant if line not in written]
    return f"not what iptables-legacy-restore writes: {wrong[0] if wrong else 'the order of the rules'}"


def _saved(wanted: list[Table]) -> list[str]:
    """The rules as `iptables-legacy-save` shows them, IPv4 and IPv6, without counts."""
    programs = {f"ip{'6' if table.ipv6 else ''}tables-legacy-save" for table in wanted}
    shown = [command.run([program], timeout=_TIMEOUT).decode(errors="replace") for program in sorted(programs)]
    return [line.split(" [")[0] for text in shown for line in text.splitlines() if not line.startswith("#")]


if __name__ == "__main__":
    main()

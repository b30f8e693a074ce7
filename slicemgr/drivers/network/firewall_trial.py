"""Find out whether python-iptables can write the node's rules here, by a trial in a separate network namespace.

The trial is necessary because a library that loads may still not work: python-iptables hard-codes structures of
libxtables that newer versions have changed. A mismatch raises an exception, crashes the process or writes wrong rules.
So a separate process writes the rules in an empty network namespace and compares the result with that of the host's own
`iptables-legacy-restore`.
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
_LONGEST = 300  # characters, at most, of a fault


@functools.cache
def fault(network: NetworkConfig) -> str:
    """Why python-iptables cannot write the rules on this host, "" if it can. Tried once per process."""
    return try_by([sys.executable, "-I", "-m", _PROGRAM], network)


def try_by(program: list[str], network: NetworkConfig) -> str:
    """The same, by another program, which reads the network settings as JSON from its standard input."""
    request = json.dumps(dataclasses.asdict(network)).encode()
    try:
        answer = command.run(["unshare", "--net", "--", *program], timeout=_TIMEOUT, input=request)
    except command.CommandFailed as error:
        if error.status is None or error.status >= 0:
            return str(error)[:_LONGEST]
        return f"it was ended by signal {-error.status}"
    text = printable(answer.decode(errors="replace").strip())[:_LONGEST]
    return "" if text == _WORKS else text or "it returned no result"


def examples() -> list[Published]:
    """Slivers whose rules have every form: more slices and blocks than one chain lists, and a slice of two slivers."""
    signs = names.ALPHABET[: LEAF + 1]
    tags = [signs[0] + sign * (names.TAG_LENGTH - 1) for sign in (signs[0], *signs)]
    return [
        Published(f"{tag}-{number}", tag, f"192.0.2.{number + 1}", PortBlock(10000 + 20 * number, 20), tags.count(tag))
        for number, tag in enumerate(tags)
    ]


def main() -> None:
    """Print the fault, in the empty network namespace. An exception is printed as text as well."""
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
    """Write the rules by python-iptables; the first fault found, "" if there is none."""
    from slicemgr.drivers.network import firewall_legacy  # needs libxtables and libip4tc

    with tempfile.NamedTemporaryFile() as lock:
        firewall_legacy.LOCK = Path(lock.name)  # no other program writes into this namespace
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
    """The rules by `iptables-legacy-save`, IPv4 and IPv6, without counters."""
    programs = {f"ip{'6' if table.ipv6 else ''}tables-legacy-save" for table in wanted}
    shown = [command.run([program], timeout=_TIMEOUT).decode(errors="replace") for program in sorted(programs)]
    return [line.split(" [")[0] for text in shown for line in text.splitlines() if not line.startswith("#")]


if __name__ == "__main__":
    main()

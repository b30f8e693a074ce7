"""Two nodes and a link on paper: programs of either end run here, `ip` and `tc` are told by files, iperf3 is gentle.

As a program it is slicectl, whose logins into slivers lead here: `python paper_ends.py STATE WORDS…`
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from slicemgr.bench.frame import slivers

IP = """#!/bin/sh
# ip -j route get ADDRESS
[ -e "$STATE/down" ] && { echo "RTNETLINK answers: Network is unreachable" >&2; exit 2; }
[ -e "$STATE/same" ] && device=lo || device=link0
printf '[{"dst":"%s","dev":"%s","prefsrc":"127.0.0.1"}]' "$4" "$device"
"""
TC = """#!/bin/sh
# tc -j qdisc show dev DEVICE; tc qdisc add|del dev DEVICE root handle HANDLE …
held="$STATE/$END.held"
case "$*" in
    *show*) [ -e "$held" ] && handle=$(cut -d" " -f1 "$held") || handle=0:
            printf '[{"kind":"x","handle":"%s"}]' "$handle" ;;
    *add*)  [ ! -e "$held" ] || { echo "Error: Exclusivity flag on, cannot modify." >&2; exit 2; }
            shift 6; echo "$*" > "$held"; echo "$*" >> "$STATE/$END.was" ;;
    *del*)  [ "$(cut -d" " -f1 "$held")" = "$7" ] && rm "$held" ;;
esac
"""
# The real one, at a rate that is no load.
IPERF = """#!/bin/sh
[ "$1" = -c ] && set -- "$@" -b 8M
exec /usr/bin/iperf3 "$@"
"""


class Ends:
    """state: a folder for all that is told. `down`: a file there that makes the link one; `same`: no link at all."""

    def __init__(self, state: Path) -> None:
        self.state = state
        state.mkdir(exist_ok=True)
        for name, text in (("ip", IP), ("tc", TC), ("iperf3", IPERF)):
            (state / name).write_text(text)
            (state / name).chmod(0o755)

    def words(self, end: str) -> list[str]:
        """That start a program at an end: near or far."""
        return ["env", f"STATE={self.state}", f"END={end}", f"PATH={self.state}:/usr/bin:/bin"]

    def options(self) -> list[str]:
        """Of slicectl bench throughput."""
        both = (("--node-exec", "near"), ("--peer-exec", "far"))
        return [word for option, end in both for word in (option, shlex.join(self.words(end)))]

    @property
    def held(self) -> list[str]:
        """The ends whose device is held to a rate, by whomever."""
        return sorted(one.name.partition(".")[0] for one in self.state.glob("*.held"))

    @property
    def login(self) -> Callable[..., list[str]]:
        """Instead of ssh into a sliver: the last word is one for a shell, as there."""
        return lambda *_: [*self.words("inside"), "sh", "-c"]


def main() -> int:
    from slicemgr.cli import main as slicectl

    state = Path(sys.argv[1])
    slivers.login = Ends(state).login
    tempfile.tempdir = str(state)  # what a killed one leaves is the test's
    sys.argv = ["slicectl", *sys.argv[2:]]
    return slicectl()


if __name__ == "__main__":
    sys.exit(main())

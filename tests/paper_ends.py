"""Two simulated nodes and a link: their programs run on this host, `ip` and `tc` read files, iperf3 has a low rate.

As a program, it is slicectl whose logins into slivers run here: `python paper_ends.py STATE WORDS…`
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
# The real program, at a rate that causes little load.
IPERF = """#!/bin/sh
[ "$1" = -c ] && set -- "$@" -b 8M
exec /usr/bin/iperf3 "$@"
"""


class Ends:
    """state: the folder of the state. A file `down` in it takes the link down; a file `same` removes the link."""

    def __init__(self, state: Path) -> None:
        self.state = state
        state.mkdir(exist_ok=True)
        for name, text in (("ip", IP), ("tc", TC), ("iperf3", IPERF)):
            (state / name).write_text(text)
            (state / name).chmod(0o755)

    def words(self, end: str) -> list[str]:
        """The command prefix that starts a program at an end: near or far."""
        return ["env", f"STATE={self.state}", f"END={end}", f"PATH={self.state}:/usr/bin:/bin"]

    def options(self) -> list[str]:
        """The options of slicectl bench throughput."""
        both = (("--node-exec", "near"), ("--peer-exec", "far"))
        return [word for option, end in both for word in (option, shlex.join(self.words(end)))]

    @property
    def held(self) -> list[str]:
        """The ends whose device has a rate limit."""
        return sorted(one.name.partition(".")[0] for one in self.state.glob("*.held"))

    @property
    def login(self) -> Callable[..., list[str]]:
        """Replaces ssh into a sliver: the last word is a command line for a shell, as for ssh."""
        return lambda *_: [*self.words("inside"), "sh", "-c"]


def main() -> int:
    import plain_plots

    from slicemgr.cli import main as slicectl

    plain_plots.use(setattr, plain_plots.PLAIN)
    state = Path(sys.argv[1])
    slivers.login = Ends(state).login
    tempfile.tempdir = str(state)  # files of a killed process are in the folder of the test
    sys.argv = ["slicectl", *sys.argv[2:]]
    return slicectl()


if __name__ == "__main__":
    sys.exit(main())

"""Plots without matplotlib, which takes most of the CPU time of a small experiment. Their content is checked as usual.

As a program, it is slicectl with these: `python plain_plots.py ARGUMENTS…`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from slicemgr.bench.report import plots
from slicemgr.bench.report.content import Plot

REAL = {"svg": plots.svg, "png": plots.png}


def svg(plot: Plot) -> str:
    return f"<svg><!-- {plot.name} --></svg>"


def png(plot: Plot) -> bytes:
    return plot.name.encode()


PLAIN = {"svg": svg, "png": png}


def use(change: Callable[[object, str, object], None], functions: Mapping[str, Callable[[Plot], object]]) -> None:
    """Draw by PLAIN or REAL. change: monkeypatch.setattr or setattr."""
    for name, function in functions.items():
        change(plots, name, function)


def main() -> int:
    from slicemgr.cli import main as slicectl

    use(setattr, PLAIN)
    return slicectl()


if __name__ == "__main__":
    sys.exit(main())

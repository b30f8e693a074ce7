"""Network rates of slivers: what the kernel lets through a sliver's link in each direction, set from the host's side.

Towards the sliver a token bucket sits on the link itself. What comes from it is redirected to a shaper, an ifb device
of the sliver's own with such a bucket, and goes on as if it came from the link: firewall and routing notice nothing.
Only tbf, ingress, u32, mirred and ifb are needed: kernels that lack police, sfq or matchall have these.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slicemgr import names
from slicemgr.drivers import command
from slicemgr.errors import Failed

_LINKS = Path("/sys/class/net")
_TIMEOUT = 30.0  # seconds
_BURST = 0.010  # seconds of the rate at once: a tick of the slowest kernels (100 Hz)
_QUEUE = 0.050  # seconds of the rate that may wait
# At low rates both are a few packets: fewer, and TCP would stand still. Larger GSO packets are cut by tbf.
_LEAST_BURST, _LEAST_QUEUE = 3200, 6400  # bytes
_ALL = "protocol all pref 1 handle 800::800 u32 match u32 0 0"
_NEEDED: Mapping[str, str] = {
    "ifb": "ip link add probe type ifb",
    "sch_tbf": "tc qdisc add dev lo root tbf rate 1mbit burst 3200 limit 9600",
    "sch_ingress": "tc qdisc add dev lo ingress",
    "cls_u32": f"tc filter add dev lo ingress {_ALL} flowid 1:1",
    "act_mirred": "tc actions add action mirred egress redirect dev lo",
}


def shape(sliver: str, to_sliver: int | None, from_sliver: int | None) -> None:
    """Hold the sliver's link to these rates, bits per second; None lifts what was set.

    May be repeated, also with other rates. Raises Failed; then the link is not limited and no shaper is left.
    """
    try:
        _make(sliver, to_sliver, from_sliver)
    except command.CommandFailed as error:
        with suppress(command.CommandFailed):
            _make(sliver, None, None)
        hint = "`slicectl doctor` shows what the node's kernel can limit"
        raise Failed(f"cannot set the network rate on {names.link(sliver)}: {error.stderr}", hint=hint) from error


def clear(sliver: str) -> None:
    """Remove the shaper: it alone outlives the link. Raises Failed."""
    try:
        _remove(sliver)
    except command.CommandFailed as error:
        raise Failed(f"cannot remove {names.shaper(sliver)}: {error.stderr}") from error


def shaped() -> frozenset[str]:
    """The slivers that have a shaper, whether their link is there or not."""
    return frozenset(filter(None, (names.sliver_of_shaper(entry.name) for entry in _LINKS.iterdir())))


def is_shaped(sliver: str) -> bool:
    return (_LINKS / names.shaper(sliver)).exists()


@functools.cache
def missing() -> tuple[str, ...]:
    """What the kernel lacks for rates, as its modules are called; () if it can. Found once, by trying.

    Tried in a network namespace that is gone afterwards. `missing.cache_clear()` before looking again.
    """
    script = "\n".join(f"{words} >/dev/null 2>&1 || echo {name}" for name, words in _NEEDED.items())
    try:
        return tuple(command.run(["unshare", "--net", "sh", "-c", script], timeout=_TIMEOUT).decode().split())
    except command.CommandFailed as error:
        return (f"a network namespace to try it in ({error.stderr.strip()})",)


def batch(sliver: str, to_sliver: int | None, from_sliver: int | None) -> str:
    """What `tc -batch` shall do for these rates, whatever was set before. Pure."""
    link, shaper = names.link(sliver), names.shaper(sliver)
    lines = [f"qdisc replace dev {link} root {bucket(to_sliver)}"]
    if to_sliver is None:  # a delete fails where nothing was set: so something is
        lines += [f"qdisc del dev {link} root"]
    if from_sliver is not None:
        lines += [f"qdisc replace dev {shaper} root {bucket(from_sliver)}"]
    lines += [f"qdisc replace dev {link} ingress"]
    if from_sliver is not None:
        lines += [f"filter replace dev {link} ingress {_ALL} action mirred egress redirect dev {shaper}"]
    else:
        lines += [f"qdisc del dev {link} ingress"]
    return "\n".join(lines) + "\n"


def bucket(rate: int | None) -> str:
    """The words of `tc` that hold a link to a rate, bits per second; None: to none."""
    if rate is None:
        return "pfifo"
    burst = max(int(rate / 8 * _BURST), _LEAST_BURST)
    queue = max(int(rate / 8 * _QUEUE), _LEAST_QUEUE)
    return f"tbf rate {rate}bit burst {burst}b limit {burst + queue}b"


def _make(sliver: str, to_sliver: int | None, from_sliver: int | None) -> None:
    if from_sliver is not None and not is_shaped(sliver):
        shaper = names.shaper(sliver)
        _run(["ip", "-batch", "-"], f"link add {shaper} type ifb\nlink set {shaper} up\n")
    _run(["tc", "-batch", "-"], batch(sliver, to_sliver, from_sliver))
    if from_sliver is None:
        _remove(sliver)


def _remove(sliver: str) -> None:
    if is_shaped(sliver):
        try:
            _run(["ip", "-batch", "-"], f"link del {names.shaper(sliver)}\n")
        except command.CommandFailed:
            if is_shaped(sliver):
                raise


def _run(words: list[str], lines: str) -> None:
    command.run(words, input=lines.encode(), timeout=_TIMEOUT)

"""Network rates of slivers: limits on a sliver's link in each direction, set on the host's side.

Traffic to the sliver passes a token bucket on the link itself. Traffic from the sliver is redirected to a shaper, an
ifb device of the sliver's own with such a bucket, and continues as if it came from the link, so firewall and routing
are unaffected. This needs tbf, ingress, u32, mirred and ifb, which also kernels without police, sfq or matchall have.
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
_BURST = 0.010  # seconds of the rate that may pass at once: one tick of the slowest kernels (100 Hz)
_QUEUE = 0.050  # seconds of the rate that may be queued
# At low rates both are a few packets: with fewer, TCP would stall. tbf segments larger GSO packets.
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
    """Set the rates of the sliver's link in bits per second; None removes the limit.

    May be repeated with other rates. Raises Failed; the link is then not limited and no shaper remains.
    """
    try:
        _make(sliver, to_sliver, from_sliver)
    except command.CommandFailed as error:
        with suppress(command.CommandFailed):
            _make(sliver, None, None)
        hint = "`slicectl doctor` shows what the node's kernel can limit"
        raise Failed(f"cannot set the network rate on {names.link(sliver)}: {error.stderr}", hint=hint) from error


def clear(sliver: str) -> None:
    """Remove the shaper, which alone outlives the link. Raises Failed."""
    try:
        _remove(sliver)
    except command.CommandFailed as error:
        raise Failed(f"cannot remove {names.shaper(sliver)}: {error.stderr}") from error


def shaped() -> frozenset[str]:
    """The slivers that have a shaper, with or without a link."""
    return frozenset(filter(None, (names.sliver_of_shaper(entry.name) for entry in _LINKS.iterdir())))


def is_shaped(sliver: str) -> bool:
    """Whether the sliver has a shaper, with or without a link."""
    return (_LINKS / names.shaper(sliver)).exists()


@functools.cache
def missing() -> tuple[str, ...]:
    """The kernel's missing modules for rates; () if there are none. Tried once, in a temporary network namespace.

    Call `missing.cache_clear()` to have it tried again.
    """
    script = "\n".join(f"{words} >/dev/null 2>&1 || echo {name}" for name, words in _NEEDED.items())
    try:
        return tuple(command.run(["unshare", "--net", "sh", "-c", script], timeout=_TIMEOUT).decode().split())
    except command.CommandFailed as error:
        return (f"a network namespace to try it in ({error.stderr.strip()})",)


def batch(sliver: str, to_sliver: int | None, from_sliver: int | None) -> str:
    """The input of `tc -batch` that sets these rates in place of any earlier ones. Pure."""
    link, shaper = names.link(sliver), names.shaper(sliver)
    lines = [f"qdisc replace dev {link} root {bucket(to_sliver)}"]
    if to_sliver is None:  # a delete fails if nothing is set, so a qdisc is set first
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
    """The `tc` qdisc that limits a link to a rate in bits per second; None: no limit."""
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

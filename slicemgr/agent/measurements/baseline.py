"""Measure the same work without slicemgr: the same root and the same XML through virDomainCreateXML.

There are no requests, rows, rules and checks. `slicectl bench` compares its results with these, in the same run on the
same node. The raw slivers are removed at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from slicemgr import ssh_banner
from slicemgr.agent.measurements import raw_slivers
from slicemgr.drivers.libvirt import console_log
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Image, Sliver, SliverType

_ANSWER_SECONDS = 300.0
_CLEANED_SECONDS = 60.0
_INTERVAL = 0.005  # seconds between checks


def measure(host: raw_slivers.Host, images: Sequence[Image], params: Mapping[str, Any]) -> dict[str, object]:
    """Create raw slivers, wait for the ssh banners, and delete them; times in seconds. Raises Refused or Failed."""
    image = next((one for one in images if one.sha256 == params["image"]), None)
    if image is None:
        raise Refused(Code.NOT_FOUND, "there is no such image", field="image")
    ones = raw_slivers.slivers(host.config, image, params)
    makers = raw_slivers.makers(SliverType(params["type"]), host)
    with ExitStack() as undo:
        undo.callback(host.pool.wait_cleaned, _CLEANED_SECONDS)  # the next measurement must not include this cleanup
        for one in ones:
            undo.callback(raw_slivers.remove, host, makers, one)
        makers.prepare(ones, undo)
        return {"baseline": _run(host, makers, ones, int(params["parallel"]))}


def _run(
    host: raw_slivers.Host, makers: raw_slivers.Makers, ones: Sequence[Sliver], parallel: int
) -> dict[str, object]:
    started: list[float] = []
    spoke: list[float] = []
    answered: list[float] = []

    def make(one: Sliver) -> None:
        begun = time.monotonic()
        raw_slivers.start(host, makers, one)
        started.append(time.monotonic() - begun)
        if one.type is SliverType.KVM:
            _wait(
                lambda: console_log.size(host.config.node.pool, one.id) > 0, f"{one.id} prints nothing on its console"
            )
            spoke.append(time.monotonic() - begun)
        _wait(lambda: ssh_banner.answers(one.address), f"{one.id} does not answer")
        answered.append(time.monotonic() - begun)

    with ThreadPoolExecutor(parallel) as threads:
        begun = time.monotonic()
        list(threads.map(make, ones))
        made = time.monotonic()
        host.hypervisor.begin_kill([one.id for one in ones])
        list(threads.map(lambda one: raw_slivers.remove(host, makers, one), ones))
        gone = time.monotonic()
    return {
        "started": started,
        "spoke": spoke,
        "answered": answered,
        "create": made - begun,
        "delete": gone - made,
    }


def _wait(done: Callable[[], bool], else_: str) -> None:
    end = time.monotonic() + _ANSWER_SECONDS
    while not done():
        if time.monotonic() > end:
            raise Failed(f"the raw sliver {else_}")
        time.sleep(_INTERVAL)

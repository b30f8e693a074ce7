"""The same work without slicemgr around it: the same snapshot and the same XML through virDomainCreateXML.

Nothing else: no request, no rows, no rules, no checks. What `slicectl bench` measures is compared with this, in the
same run on the same node. The raw slivers carry our mark, have no row, and are gone at the end.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slicemgr import names
from slicemgr.agent.apply import banner
from slicemgr.config import Config
from slicemgr.drivers import launch
from slicemgr.drivers.btrfs import Pool
from slicemgr.drivers.domain_xml import domain_xml
from slicemgr.drivers.hypervisor import Hypervisor
from slicemgr.drivers.identity import Identity, new_host_key, write_identity
from slicemgr.drivers.place import Place
from slicemgr.drivers.rootfs import Root
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import IDS_PER_SLIVER, Desired, Kind, Limits, PortBlock, Sliver

_ANSWER_SECONDS = 120.0
_CLEANED_SECONDS = 60.0
_LAST_IDS = 65000 * IDS_PER_SLIVER  # far from what allocation gives
_PATTERN = 900  # index of the snapshot that the others are made of


def measure(config: Config, hypervisor: Hypervisor, pool: Pool, params: Mapping[str, Any]) -> dict[str, object]:
    """Make, wait for each ssh banner at the private address, end, delete; seconds. Raises Refused or Failed."""
    base = names.base_dir(config.node.pool, str(params["image"]))
    if not base.is_dir():
        raise Refused(Code.NOT_FOUND, "there is no such image", field="image")
    tag, count = names.new_tag(), int(params["count"])
    raw = [_sliver(config, tag, index) for index in range(count)]
    with ExitStack() as undo:
        undo.callback(pool.wait_cleaned, _CLEANED_SECONDS)  # what is measured next must not pay for it
        pattern = names.sliver_dir(config.node.pool, names.sliver_id(tag, _PATTERN))
        undo.callback(pool.delete_tree, pattern, None)
        pool.snapshot(base, pattern)
        _identify(config, raw[0], pattern)
        for one in raw:
            undo.callback(_remove, config, hypervisor, pool, one)
        return {"baseline": _run(config, hypervisor, pool, raw, pattern, int(params["parallel"]))}


def _run(
    config: Config, hypervisor: Hypervisor, pool: Pool, raw: list[Sliver], pattern: Path, parallel: int
) -> dict[str, object]:
    place = launch.place(config)

    def make(one: Sliver) -> tuple[float, float]:
        begun = time.monotonic()
        _start(config, hypervisor, pool, place, one, pattern)
        started = time.monotonic()
        while not banner(one.address):
            if time.monotonic() - begun > _ANSWER_SECONDS:
                raise Failed(f"the raw sliver {one.id} does not answer")
            time.sleep(0.005)
        return started - begun, time.monotonic() - begun

    with ThreadPoolExecutor(parallel) as threads:
        begun = time.monotonic()
        times = list(threads.map(make, raw))
        made = time.monotonic()
        hypervisor.begin_kill([one.id for one in raw])
        list(threads.map(lambda one: _remove(config, hypervisor, pool, one), raw))
        gone = time.monotonic()
    return {
        "started": [first for first, _ in times],
        "answered": [last for _, last in times],
        "create": made - begun,
        "delete": gone - made,
    }


def _start(config: Config, hypervisor: Hypervisor, pool: Pool, place: Place, one: Sliver, pattern: Path) -> None:
    directory = names.sliver_dir(config.node.pool, one.id)
    directory.mkdir(mode=0o700)
    pool.snapshot(pattern, names.root_dir(config.node.pool, one.id))
    launch.write(config, one)
    hypervisor.create(one.kind, domain_xml(one, place), one.limits.memory)


def _remove(config: Config, hypervisor: Hypervisor, pool: Pool, one: Sliver) -> None:
    hypervisor.kill(one.id)
    launch.remove(config, one.id)
    directory = names.sliver_dir(config.node.pool, one.id)
    pool.delete_tree(names.root_dir(config.node.pool, one.id), None)
    if directory.exists():
        directory.rmdir()


def _identify(config: Config, one: Sliver, root: Path) -> None:
    private, public = new_host_key()
    identity = Identity(one.hostname, one.address, config.network.gateway, (), (), private, public)
    with Root(root) as opened:
        write_identity(opened, identity)


def _sliver(config: Config, tag: str, index: int) -> Sliver:
    """As the service would make it, at the far end of the address pool."""
    limits = config.limits
    last = ipaddress.IPv4Network(config.network.addresses).broadcast_address
    return Sliver(
        id=names.sliver_id(tag, index),
        serial=0,
        tag=tag,
        slice_name="baseline",
        index=index,
        kind=Kind.LXC,
        desired=Desired.RUNNING,
        image="",
        arch="x86_64",
        address=str(last - 2 - index),
        ports=PortBlock(config.network.ports_last, 1),
        uid_first=_LAST_IDS - index * IDS_PER_SLIVER,
        limits=Limits(limits.memory.bytes, limits.disk.bytes, limits.pids, limits.cpu),
        ssh_keys=(),
    )

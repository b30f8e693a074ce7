"""Slivers without slicemgr: only the same root and the same XML through virDomainCreateXML.

They carry slicemgr's mark and have no row; the caller that creates them removes them. What they share is created first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slicemgr import names
from slicemgr.agent.roots import preparation
from slicemgr.config import Config
from slicemgr.drivers.guest.identity import Identity, new_host_key, write_identity
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.libvirt import host as libvirt_host
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.domain_xml import domain_xml, host_memory
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Refused
from slicemgr.model import IDS_PER_SLIVER, Boot, Desired, Image, Limits, Machine, PortBlock, Sliver, SliverType

_LAST_IDS = 65000 * IDS_PER_SLIVER  # outside the range that allocation uses
_PATTERN = 900  # index of the snapshot that the others are copied from


@dataclass(frozen=True, slots=True)
class Host:
    """The configuration and drivers that create raw slivers."""

    config: Config
    hypervisor: Hypervisor
    pool: Pool
    place: libvirt_host.Host


class Makers(Protocol):
    """Creates and removes the raw slivers of one type."""

    def prepare(self, raw: Sequence[Sliver], undo: ExitStack) -> None:
        """Do what is not timed. undo: gets the callbacks that revert it."""

    def root(self, one: Sliver) -> None: ...

    def remove(self, one: Sliver) -> None:
        """Remove all files of a raw sliver that does not run."""


def makers(sliver_type: SliverType, host: Host) -> Makers:
    """The implementation for a type."""
    match sliver_type:
        case SliverType.LXC:
            return _Containers(host)
        case SliverType.KVM:
            return _Machines(host)


def start(host: Host, makers: Makers, one: Sliver) -> None:
    """Create root and domain."""
    makers.root(one)
    host.hypervisor.create(one.type, domain_xml(one, host.place), host_memory(one, host.place))


def remove(host: Host, makers: Makers, one: Sliver) -> None:
    """Remove domain and root; missing ones are skipped."""
    host.hypervisor.kill(one.id)
    makers.remove(one)


class _Containers:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._pool_dir = host.config.node.pool
        self._pattern = Path()

    def prepare(self, raw: Sequence[Sliver], undo: ExitStack) -> None:
        self._pattern = names.sliver_dir(self._pool_dir, names.sliver_id(raw[0].tag, _PATTERN))
        undo.callback(self._host.pool.delete_tree, self._pattern, None)
        self._host.pool.snapshot(names.base_dir(self._pool_dir, raw[0].image), self._pattern)
        with Root(self._pattern) as root:
            write_identity(root, _identity(self._host.config, raw[0]))

    def root(self, one: Sliver) -> None:
        names.sliver_dir(self._pool_dir, one.id).mkdir(mode=0o700)
        self._host.pool.snapshot(self._pattern, names.root_dir(self._pool_dir, one.id))
        launch.write(self._host.config, one)

    def remove(self, one: Sliver) -> None:
        launch.remove(self._host.config, one.id)
        directory = names.sliver_dir(self._pool_dir, one.id)
        self._host.pool.delete_tree(names.root_dir(self._pool_dir, one.id), None)
        if directory.exists():
            directory.rmdir()


class _Machines:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._pool_dir = host.config.node.pool
        self._its = preparation(SliverType.KVM, host.config, host.pool, host.hypervisor, lambda: host.place)

    def prepare(self, raw: Sequence[Sliver], undo: ExitStack) -> None:
        """Create the seeds: each machine has a disk with its address."""
        for one in raw:
            self._host.pool.create_subvolume(names.sliver_dir(self._pool_dir, one.id))
            self._its.identify(one, _identity(self._host.config, one))

    def root(self, one: Sliver) -> None:
        self._its.make(one, names.sliver_dir(self._pool_dir, one.id), None)
        self._its.launch(one)

    def remove(self, one: Sliver) -> None:
        self._host.pool.delete_tree(names.sliver_dir(self._pool_dir, one.id), None)


def slivers(config: Config, image: Image, params: Mapping[str, Any]) -> list[Sliver]:
    """Slivers as the service creates them, at the end of the address pool. Raises Refused if the image cannot boot."""
    sliver_type, boot = SliverType(params["type"]), image.boot.choose(Boot(params["boot"]))
    if boot is None and sliver_type is SliverType.KVM:
        raise Refused(Code.INVALID, f"image {image.name} cannot boot by {params['boot']}", field="boot")
    tag, limits = names.new_tag(), config.limits
    last = ipaddress.IPv4Network(config.network.addresses).broadcast_address
    return [
        Sliver(
            id=names.sliver_id(tag, index),
            serial=0,
            tag=tag,
            slice_name="baseline",
            index=index,
            type=sliver_type,
            desired=Desired.RUNNING,
            image=image.sha256,
            arch="x86_64",
            address=str(last - 2 - index),
            ports=PortBlock(config.network.ports_last, 1),
            uid_first=_LAST_IDS - index * IDS_PER_SLIVER,
            limits=Limits(int(params["memory"]), limits.disk.bytes, limits.pids, limits.cpu),
            ssh_keys=(),
            image_format=image.format,
            image_size=image.virtual_size,
            boot=boot or Boot.DIRECT,
            boot_facts=image.boot,
            machine=Machine(params.get("machine", Machine.STANDARD)),
        )
        for index in range(int(params["count"]))
    ]


def _identity(config: Config, one: Sliver) -> Identity:
    private, public = new_host_key()
    return Identity(one.hostname, one.address, config.network.gateway, (), (), private, public)

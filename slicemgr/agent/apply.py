"""Carry out the steps of a plan. Each step is idempotent, so that it can run again after a crash at any point."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slicemgr import names, ssh_banner
from slicemgr.agent import observe, records
from slicemgr.agent.acceleration import Machines
from slicemgr.agent.journal import Journal
from slicemgr.agent.kept_disks import KeptDisks
from slicemgr.agent.plan import Step, phase_after
from slicemgr.agent.publisher import Publisher
from slicemgr.agent.roots import Roots
from slicemgr.config import Config
from slicemgr.drivers.guest.identity import Identity, new_host_key
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt import console_log, launch
from slicemgr.drivers.libvirt.domain_xml import domain_xml, host_memory
from slicemgr.drivers.libvirt.host import Host
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import links, neighbours, traffic
from slicemgr.drivers.storage import atomic_file
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.model import Phase, Sliver, SliverSnapshot, SliverType
from slicemgr.policy import allocate
from slicemgr.store import pending

_CONSOLE_INTERVAL = 0.01  # seconds between checks for output on a console
_SHORTEST_CONNECT = 0.05  # seconds for a connection over the link of a sliver
_CONSOLE_LIMIT = 10.0  # seconds to wait for output on the console before the ssh banner is tried
_GUEST_LIMIT, _GUEST_INTERVAL = 60.0, 0.5  # seconds to wait for the guest agent of a spare
_NO_SPARE = "take spares of this image out of spares.keep"
_RESUME_CHECK = 1.0  # seconds after which a machine that cannot write is paused again
_RECORDED = (Step.ROOT, Step.IDENTITY, Step.RESIZE, Step.LIMITS, Step.NAME)  # steps that change a sliver's record
_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")


class Applier:
    """Carries out single steps of slivers' plans. Thread-safe for different slivers."""

    def __init__(
        self,
        config: Config,
        hypervisor: Hypervisor,
        pool: Pool,
        publisher: Publisher,
        journal: Journal,
        machines: Machines,
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._hypervisor = hypervisor
        self._pool = pool
        self._publisher = publisher
        self._journal = journal
        self._stop = stop
        self._machines = machines
        self._containers = launch.host(config)
        self._roots = Roots(config, pool, hypervisor, self._place)
        self._kept_disks = KeptDisks(config, hypervisor, pool, publisher)
        self._console_sizes: dict[str, int] = {}  # machine → bytes in its console log before it started
        self._dns = config.network.dns or resolvers(Path("/etc/resolv.conf").read_text())
        self._steps: dict[Step, Callable[[Sliver], str | None]] = {
            Step.DISCARD: self._discard,
            Step.SNAPSHOT: self._snapshot,
            Step.KEEP: self._keep,
            Step.ROOT: self._roots.make,
            Step.RESIZE: self._roots.resize,
            Step.IDENTITY: self._identity,
            Step.DOMAIN: self._domain,
            Step.LIMITS: self._limits,
            Step.NAME: self._name,
            Step.KEYS: self._keys,
            Step.LINK: self._link,
            Step.SHAPE: self._shape,
            Step.PUBLISH: self._publish,
            Step.VERIFY: self._verify,
            Step.PAUSE: self._pause,
            Step.RESUME: self._resume,
            Step.STOP: self._clean_stop,
            Step.KILL: self._kill,
            Step.WITHDRAW: self._withdraw,
            Step.REMOVE: self._remove,
        }

    def do(self, step: Step, sliver: Sliver, progress: Callable[[str], None], unwanted: Callable[[], bool]) -> str:
        """Carry out the step and return a detail for the operation, or "". Raises Failed or Refused.

        progress: called with a detail during the step. unwanted: whether a later request has changed the desired
        state; the step then stops waiting.
        """
        if step is Step.SSH:
            return self._ssh(sliver, progress, unwanted)
        detail = self._steps[step](sliver) or ""
        if step in _RECORDED and not sliver.spare:  # no admin has to find a spare again
            records.write(self._config.node.pool, sliver)
        return detail

    def undo(self, step: Step, sliver: Sliver) -> None:
        """Clean up after `step` failed. A root that contains data is always kept."""
        with suppress(SlicemgrError):
            if step is Step.ROOT and not (observe.has_root(self._config, sliver.id) or sliver.snapshots):
                self._remove(sliver)
            if step in (Step.DOMAIN, Step.SHAPE, Step.VERIFY):
                self._console_sizes.pop(sliver.id, None)
                self._hypervisor.kill(sliver.id)
                launch.remove(self._config, sliver.id)
                traffic.clear(sliver.id)

    # snapshots

    def _snapshot(self, sliver: Sliver) -> str:
        """Create the missing snapshots; then set the disk limit, which has to count their sizes under full quotas."""
        details = []
        for one in sliver.snapshots:
            if not one.made:
                size, detail = self._roots.snapshot(sliver, one.id)
                self._journal.add(pending.SnapshotMade(sliver.id, one.id, size, detail))
                sliver = replace(sliver, snapshots=_with_size(sliver.snapshots, one.id, size))
                details += [detail] if detail else []
        self._roots.limit(sliver)
        return "; ".join(details)

    def _discard(self, sliver: Sliver) -> None:
        self._roots.discard(sliver)
        self._roots.limit(sliver)

    # towards running

    def _keep(self, sliver: Sliver) -> str:
        kept = self._kept_disks.keep(sliver.id, names.qgroup(sliver.serial))
        return "" if kept is None else f"kept in {kept.path} until {kept.until}"

    def _place(self) -> Host:
        return self._machines.place(self._containers)

    def _identity(self, sliver: Sliver) -> None:
        identity = self._identity_of(sliver)
        self._roots.identify(sliver, identity)
        seen = pending.SliverSeen(sliver.id, Phase.PENDING, host_key=identity.host_key_public, keys_missing="")
        self._journal.add(seen)

    def _limits(self, sliver: Sliver) -> None:
        """Noted at the end: until then the step is repeated."""
        if sliver.limits.memory_max is not None:
            self._note_unknown_size(sliver)
        self._hypervisor.limit(sliver, host_memory(sliver, self._place()))
        self._verify(sliver)
        domain = self._hypervisor.domain(sliver.id)
        if domain is not None:
            observe.note_settled(self._config, sliver.id, domain.pid, sliver.limits)

    def _note_unknown_size(self, sliver: Sliver) -> None:
        """If the agent ends meanwhile, the guest may keep more than it had, also if its row is as before then."""
        domain = self._hypervisor.domain(sliver.id)
        if domain is not None:
            observe.note_settled(self._config, sliver.id, domain.pid, replace(sliver.limits, memory=0))

    def _name(self, sliver: Sliver) -> None:
        self._roots.rename(sliver, self._identity_of(sliver))

    def _identity_of(self, sliver: Sliver) -> Identity:
        private, public = self._host_key(sliver)
        return Identity(
            hostname=sliver.hostname,
            address=sliver.address,
            gateway=self._config.network.gateway,
            dns=self._dns,
            authorized_keys=sliver.ssh_keys,
            host_key_private=private,
            host_key_public=public,
            peers=tuple((sliver.hostname_of(index), address) for index, address in sliver.peers),
        )

    def _keys(self, sliver: Sliver) -> str:
        """Replace the ssh keys. A running sliver that cannot accept them is no failure: its row has the reason."""
        missing = self._roots.give_keys(sliver)
        _, public = self._host_key(sliver)
        update = pending.SliverSeen(sliver.id, phase_after(sliver.desired), keys_missing=missing, host_key=public)
        self._journal.add(update)
        return missing

    def _host_key(self, sliver: Sliver) -> tuple[bytes, str]:
        """The sliver's ssh host key, stored where the tenant cannot change it; created at the first start."""
        directory = names.sliver_dir(self._config.node.pool, sliver.id)
        private, public = directory / "host_key", directory / "host_key.pub"
        if public.exists():
            return private.read_bytes(), public.read_text().strip()
        made = new_host_key()
        private.touch(mode=0o600)
        private.write_bytes(made[0])
        atomic_file.write(public, made[1])
        return made

    def _domain(self, sliver: Sliver) -> None:
        """Start the domain, whatever an interrupted start has left: a link, or a domain that libvirtd was starting."""
        links.remove([names.link(sliver.id)])
        try:
            self._start(sliver)
        except Failed as error:
            if error.code is Code.UNAVAILABLE or self._hypervisor.domain(sliver.id) is None:
                raise
            self.undo(Step.DOMAIN, sliver)
            self._start(sliver)

    def _start(self, sliver: Sliver) -> None:
        self._roots.launch(sliver)
        place = self._place()
        if sliver.type is SliverType.KVM:
            self._console_sizes[sliver.id] = console_log.size(self._config.node.pool, sliver.id)
        self._hypervisor.create(sliver.type, domain_xml(sliver, place), host_memory(sliver, place))
        self._link(sliver)
        if sliver.type is SliverType.KVM:
            update = pending.SliverSeen(
                sliver.id,
                Phase.PENDING,
                acceleration=place.acceleration,
                booted="no",
                memory_started=sliver.limits.memory,
            )
            self._journal.add(update)

    def _link(self, sliver: Sliver) -> None:
        neighbours.guard(sliver.id, sliver.address)

    def _shape(self, sliver: Sliver) -> None:
        traffic.shape(sliver.id, sliver.limits.net_in, sliver.limits.net_out)

    def _publish(self, sliver: Sliver) -> None:
        self._publisher.publish(sliver)

    def _verify(self, sliver: Sliver) -> None:
        limits = replace(sliver.limits, memory=host_memory(sliver, self._place()))
        wrong = cgroup.verify(self._hypervisor.init_pid(sliver.id), limits)
        if wrong:
            raise Failed("; ".join(wrong), hint="`slicectl doctor` shows which limits the kernel of the node supports")

    def _ssh(self, sliver: Sliver, progress: Callable[[str], None], unwanted: Callable[[], bool]) -> str:
        """Wait for the ssh banner. A sliver without sshd is no failure: the detail reports the missing banner."""
        agent = self._config.agent
        limit = (agent.ssh_wait if sliver.type is SliverType.LXC else agent.boot_wait).total_seconds()
        began = time.monotonic()
        deadline = began + limit
        if sliver.type is SliverType.KVM and self._wait_for_console(sliver):
            progress("the guest speaks on its console")
        wait, answered = 0.01, False
        while (
            not (answered := ssh_banner.answers(sliver.address, connect=_patience(time.monotonic() - began)))
            and time.monotonic() < deadline
            and not self._stop.wait(wait)
        ):
            wait = min(0.25, wait * 1.5)
            if unwanted() or (wait == 0.25 and self._hypervisor.domain(sliver.id) is None):
                break
        domain = self._hypervisor.domain(sliver.id)
        if domain is None:
            raise Failed("the sliver ended while it started", hint="its init or image may be broken")
        if domain.trouble:
            raise self._paused_by_error(sliver, domain.trouble)
        if sliver.type is SliverType.KVM and not self._stop.is_set():
            self._journal.add(pending.SliverSeen(sliver.id, Phase.PENDING, booted="yes" if answered else "unknown"))
        if sliver.spare:
            self._check_spare(sliver, answered)
        observe.note_settled(self._config, sliver.id, domain.pid, sliver.limits)
        if answered:
            return ""
        if unwanted():
            return "not verified, because the desired state has changed"
        output = console_log.last_line(self._config.node.pool, sliver.id)
        return f"not verified: no ssh banner within {limit:.0f} s" + (
            f"; last console output: {output!r}" if output else ""
        )

    def _check_spare(self, sliver: Sliver, answered: bool) -> None:
        """Raise Failed unless any slice can take it while it runs: a guest takes name and keys by its agent."""
        if not answered:
            raise Failed("a spare has to answer by ssh", hint=_NO_SPARE)
        deadline = time.monotonic() + _GUEST_LIMIT
        while sliver.type is SliverType.KVM and not self._hypervisor.guest_answers(sliver.id):
            if time.monotonic() > deadline or self._stop.wait(_GUEST_INTERVAL):
                raise Failed("the guest agent of a spare has to answer", hint=_NO_SPARE)

    def _wait_for_console(self, sliver: Sliver) -> bool:
        """Wait until the guest writes to its console; whether it did. No banner can appear before."""
        pool, before = self._config.node.pool, self._console_sizes.pop(sliver.id, 0)
        deadline = time.monotonic() + _CONSOLE_LIMIT
        while not (written := console_log.size(pool, sliver.id) != before) and time.monotonic() < deadline:
            if self._stop.wait(_CONSOLE_INTERVAL):
                break
        return written

    def _pause(self, sliver: Sliver) -> None:
        self._hypervisor.pause(sliver.id)

    def _resume(self, sliver: Sliver) -> None:
        """Resume the sliver. Raises Failed with the reason if a machine paused by an error pauses again."""
        self._hypervisor.resume(sliver.id)
        if sliver.type is SliverType.KVM and self._stop.wait(_RESUME_CHECK):
            return
        domain = self._hypervisor.domain(sliver.id)
        if domain is not None and domain.trouble:
            raise self._paused_by_error(sliver, domain.trouble)

    def _paused_by_error(self, sliver: Sliver, trouble: str) -> Failed:
        """The error of a machine that paused itself; libvirt does not distinguish a quota from a broken disk."""
        used = self._pool.usage().get(names.qgroup(sliver.serial), 0) + sliver.inherited
        if used >= sliver.limits.disk:
            text = allocate.size_text(sliver.limits.disk)
            hint = (
                f"increase it with `slicectl resize {sliver.slice_name} --disk SIZE`; the virtual machine then resumes"
            )
            return Failed(f"the virtual machine is paused because its disk limit of {text} is reached", hint=hint)
        return Failed(
            f"the virtual machine is paused: {trouble}", hint="show the usage of the pool with `slicectl doctor`"
        )

    # away from it

    def _clean_stop(self, sliver: Sliver) -> str:
        clean = self._hypervisor.stop(sliver.id, self._config.agent.stop_grace.total_seconds())
        launch.remove(self._config, sliver.id)
        traffic.clear(sliver.id)
        return "" if clean else "did not shut down in time and was stopped by force"

    def _kill(self, sliver: Sliver) -> None:
        if sliver.type is SliverType.LXC:
            links.remove([names.link(sliver.id)])  # libvirtd does nothing else while it removes one
        self._hypervisor.kill(sliver.id)

    def _withdraw(self, sliver: Sliver) -> None:
        self._publisher.withdraw(sliver.id)

    def _remove(self, sliver: Sliver) -> None:
        launch.remove(self._config, sliver.id)
        traffic.clear(sliver.id)
        self._pool.delete_tree(names.sliver_dir(self._config.node.pool, sliver.id), names.qgroup(sliver.serial))


def _patience(waited: float) -> float:
    """Seconds for a connection to a sliver for which an operation has waited: a fraction of that, at most 2."""
    return min(2.0, max(_SHORTEST_CONNECT, waited / 8))


def _with_size(snapshots: tuple[SliverSnapshot, ...], id: str, size: int) -> tuple[SliverSnapshot, ...]:
    return tuple(replace(one, made=True, size=size) if one.id == id else one for one in snapshots)


def resolvers(resolv_conf: str) -> tuple[str, ...]:
    """The first three IPv4 name servers of the node that slivers can reach, without loopback addresses."""
    found = []
    for line in resolv_conf.splitlines():
        words = line.split()
        if words[:1] == ["nameserver"] and len(words) > 1:
            with suppress(ValueError):
                address = ipaddress.IPv4Address(words[1])
                if address not in _LOOPBACK:
                    found.append(str(address))
    return tuple(found[:3])

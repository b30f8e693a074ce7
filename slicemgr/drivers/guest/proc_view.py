"""lxcfs: files of /proc that show a container its own limits and usage instead of the node's.

One daemon serves all containers. Tenants send it requests, so it has few capabilities and a mount point that no
container can access. A daemon that ends or hangs is replaced, and tools/view mounts the new files over the dead ones
in each container. The daemon is not a child of the agent: containers keep their /proc while the agent does not run.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from slicemgr.config import PACKAGE
from slicemgr.drivers import command
from slicemgr.errors import Failed

log = logging.getLogger(__name__)

PROGRAM = "lxcfs"
RENEW = PACKAGE / "libexec" / "sliver-view"
ANSWER_SECONDS = 10.0  # a healthy daemon needs 1 ms; a busy node may not schedule it for seconds
_TARGETS = ("/proc/meminfo", "/proc/uptime")  # enough to identify the files that a container has
_FILESYSTEM = "fuse.lxcfs"
_START_SECONDS, _MOUNT_SECONDS, _RENEW_SECONDS = 20.0, 10.0, 60.0
_PAUSE = 0.02
_UNIT = "slicemgr-lxcfs"
_BACKGROUND = '"$@" < /dev/null > /dev/null 2>&1 &'  # the daemon must not hold a pipe of the agent
# It mounts, enters PID namespaces and its first mount namespace, and reads files of mapped ids.
_CAPABILITIES = ("sys_admin", "sys_chroot", "sys_ptrace", "dac_override", "dac_read_search", "setuid", "setgid")


class ProcView:
    """The daemon, and its mount below `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.mount = run_dir / "view" / "lxcfs"  # in a directory that only root may enter
        self._pid_file = run_dir / "lxcfs.pid"

    def installed(self) -> bool:
        """Whether the program lxcfs is installed."""
        return shutil.which(PROGRAM, path="/usr/local/bin:/usr/bin:/bin") is not None

    def answers(self) -> bool:
        """Whether the daemon responds within 10 s. `start` kills one that hangs, which releases waiting processes."""
        found: list[str] = []

        def read() -> None:
            with suppress(OSError):
                found.append((self.mount / "proc/uptime").read_text())

        reader = threading.Thread(target=read, name="lxcfs", daemon=True)
        reader.start()
        reader.join(ANSWER_SECONDS)
        if reader.is_alive():
            log.error("lxcfs does not respond within %g s", ANSWER_SECONDS)
        return bool(found)

    def remove(self) -> None:
        """Kill the daemon and remove its mount and files. Raises CommandFailed if the unmount fails."""
        self.kill()
        if self._mounted():
            command.run(["umount", "--lazy", self.mount], timeout=_MOUNT_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        for directory in (self.mount, self.mount.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()

    def start(self) -> None:
        """Remove an earlier daemon and start a new one. Raises Failed."""
        try:
            self.remove()
        except (command.CommandFailed, OSError) as error:
            raise Failed(f"the mount of an earlier lxcfs cannot be removed: {error}") from error
        self.mount.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.mount.mkdir(exist_ok=True)
        try:
            command.run(start_words(self.mount, self._pid_file, systemd=_runs_systemd()), timeout=_START_SECONDS)
        except command.CommandFailed as error:
            raise Failed(f"lxcfs does not start: {error}") from error
        end = time.monotonic() + _START_SECONDS
        while not self._mounted():
            if time.monotonic() > end:
                raise Failed(
                    f"lxcfs does not mount {self.mount}", hint="start lxcfs in a terminal, and read its error messages"
                )
            time.sleep(_PAUSE)

    def _mounted(self) -> bool:
        return device(Path("/proc/thread-self/mountinfo"), str(self.mount)) is not None

    def kill(self) -> None:
        """Kill the daemon, after a check that the process of the pid file serves this mount."""
        with suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            descriptor = os.pidfd_open(pid)
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if str(self.mount).encode() in words:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    def renew(self, inits: Collection[int]) -> list[int]:
        """Mount the running daemon's files over dead ones in the containers with these first processes.

        Containers that never had such files are skipped. Returns the processes whose containers were changed. Raises
        Failed.
        """
        current = device(Path("/proc/thread-self/mountinfo"), str(self.mount))
        if current is None:
            return []
        stale = [pid for pid in inits if _shown(pid) - {current}]
        if stale:
            try:
                command.run([RENEW, self.mount, *map(str, stale)], timeout=_RENEW_SECONDS)
            except command.CommandFailed as error:
                raise Failed(f"containers still have the files of an lxcfs that has ended: {error}") from error
        return stale


def start_words(mount: Path, pid_file: Path, *, systemd: bool) -> list[str]:
    """The command line that starts the daemon in the background. systemd: as a unit of its own. Pure.

    `-l`: the container's load averages. `-u`: no swap is shown, since a sliver has none.
    """
    serve = [PROGRAM, "-f", "-l", "-u", "--enable-cfs", "--enable-pidfd", "-p", str(pid_file), str(mount)]
    if systemd:
        bounding = " ".join(f"CAP_{name.upper()}" for name in _CAPABILITIES)
        properties = {
            "Type": "exec",
            "NoNewPrivileges": "yes",
            "CapabilityBoundingSet": bounding,
            "OOMScoreAdjust": "-900",
            "KillMode": "process",
        }
        options = [f"--property={name}={value}" for name, value in properties.items()]
        return ["systemd-run", "--quiet", "--collect", f"--unit={_UNIT}", *options, "--", *serve]
    bounding = ",".join(["-all", *(f"+{name}" for name in _CAPABILITIES)])
    confined = ["setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set", bounding, "--", *serve]
    return ["sh", "-c", _BACKGROUND, "sh", *confined]


def device(mountinfo: Path, target: str) -> str | None:
    """The device `MAJOR:MINOR` of the topmost lxcfs mount at `target`; None if there is none.

    It comes from the kernel's list of mounts, which is readable even if the daemon does not respond.
    """
    return devices(mountinfo).get(target)


def devices(mountinfo: Path) -> Mapping[str, str]:
    """The device of the topmost mount at each mount point of lxcfs, from a list of mounts."""
    found = {}
    with suppress(OSError):
        for line in mountinfo.read_text(errors="replace").splitlines():
            fields, _, source = line.partition(" - ")
            words = fields.split()
            if source.startswith(f"{_FILESYSTEM} ") and len(words) > 4:
                found[words[4]] = words[2]
    return found


def _shown(init: int) -> set[str]:
    """The devices of the lxcfs files that a container has."""
    have = devices(Path(f"/proc/{init}/mountinfo"))
    return {have[one] for one in _TARGETS if one in have}


def _runs_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()

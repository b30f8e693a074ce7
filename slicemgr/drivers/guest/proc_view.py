"""lxcfs: the files of /proc that show a container its own limits and use instead of the node's.

One daemon serves all containers. It answers tenants, so it has few capabilities, and a mount point that no container
sees. It may end or hang: then it is ended, started anew, and the new files take the place of the dead ones in each
container (tools/view). The daemon is not the agent's child: containers keep their /proc while the agent is away.
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
ANSWER_SECONDS = 10.0  # a healthy daemon needs a millisecond; a busy node may not run it for seconds
_TARGETS = ("/proc/meminfo", "/proc/uptime")  # enough to tell what a container has
_FILESYSTEM = "fuse.lxcfs"
_START_SECONDS, _MOUNT_SECONDS, _RENEW_SECONDS = 20.0, 10.0, 60.0
_PAUSE = 0.02
_UNIT = "slicemgr-lxcfs"
_BACKGROUND = '"$@" < /dev/null > /dev/null 2>&1 &'  # the daemon must hold no pipe of the agent's
# It mounts, enters PID namespaces and its first mount namespace, and reads what belongs to mapped ids.
_CAPABILITIES = ("sys_admin", "sys_chroot", "sys_ptrace", "dac_override", "dac_read_search", "setuid", "setgid")


class ProcView:
    """The daemon and its mount below `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.mount = run_dir / "view" / "lxcfs"  # in a directory that only root enters
        self._pid_file = run_dir / "lxcfs.pid"

    def installed(self) -> bool:
        return shutil.which(PROGRAM, path="/usr/local/bin:/usr/bin:/bin") is not None

    def answers(self) -> bool:
        """Whether the daemon answers in time. `start` ends one that hangs, and the processes that wait for it go on."""
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
        """End the daemon, and take away its mount and its files. Raises CommandFailed if the mount stays."""
        self.kill()
        if self._mounted():
            command.run(["umount", "--lazy", self.mount], timeout=_MOUNT_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        for directory in (self.mount, self.mount.parent):
            with suppress(FileNotFoundError):
                directory.rmdir()

    def start(self) -> None:
        """Start the daemon in the place of one that is gone. Raises Failed."""
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
                raise Failed(f"lxcfs does not mount {self.mount}", hint="start it by hand, and look at what it says")
            time.sleep(_PAUSE)

    def _mounted(self) -> bool:
        return device(Path("/proc/thread-self/mountinfo"), str(self.mount)) is not None

    def kill(self) -> None:
        """End the daemon, and it alone: the process must say that it serves this mount."""
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
        """Give the containers with these first processes the files of the daemon that runs, where theirs are dead.

        Those that never had any stay as they are. Returns the processes whose containers were given some.
        """
        current = device(Path("/proc/thread-self/mountinfo"), str(self.mount))
        if current is None:
            return []
        stale = [pid for pid in inits if _shown(pid) - {current}]
        if stale:
            try:
                command.run([RENEW, self.mount, *map(str, stale)], timeout=_RENEW_SECONDS)
            except command.CommandFailed as error:
                raise Failed(f"containers keep dead files of lxcfs: {error}") from error
        return stale


def start_words(mount: Path, pid_file: Path, *, systemd: bool) -> list[str]:
    """The words that start the daemon and do not wait for it. systemd: as a unit of its own. Pure.

    `-l`: load averages of the container. `-u`: no swap is shown, since a sliver has none.
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
    """The device `MAJOR:MINOR` of what lxcfs has on top at a mount point; None if there is nothing of it.

    The kernel's own list: it answers also where the daemon does not.
    """
    return devices(mountinfo).get(target)


def devices(mountinfo: Path) -> Mapping[str, str]:
    """Of each mount point of lxcfs in a list of mounts, the device on top."""
    found = {}
    with suppress(OSError):
        for line in mountinfo.read_text(errors="replace").splitlines():
            fields, _, source = line.partition(" - ")
            words = fields.split()
            if source.startswith(f"{_FILESYSTEM} ") and len(words) > 4:
                found[words[4]] = words[2]
    return found


def _shown(init: int) -> set[str]:
    """The devices behind a container's files of lxcfs."""
    have = devices(Path(f"/proc/{init}/mountinfo"))
    return {have[one] for one in _TARGETS if one in have}


def _runs_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()

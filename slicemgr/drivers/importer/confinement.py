"""Run a program that reads untrusted data: as a user of its own, with limits, and with a minimal view of the node.

bubblewrap creates the namespaces and mounts as root. The program then gets its user, loses every capability for good,
and gets its limits. A seccomp filter (seccomp_filter) denies system calls that it does not need. It can access /usr, an
empty scratch directory of limited size that ends with it, and the paths that its caller binds. A cgroup, where one is
available, limits the memory and the number of all its processes.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from slicemgr.drivers import command
from slicemgr.drivers.command import Conversation
from slicemgr.drivers.importer import seccomp_filter
from slicemgr.drivers.kernel import cgroup
from slicemgr.errors import invalid

SCRATCH = "/var/tmp"  # also /tmp, which QEMU does not use for its temporary files
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "XDG_RUNTIME_DIR": SCRATCH,
}  # nothing is inherited from the agent: the address of a proxy may contain a password
_BECOMING = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # for setpriv, which then drops them
_ETC = ("/etc/ld.so.cache", "/etc/alternatives")
_SYSTEMD = Path("/run/systemd/system")
_SLIVERS = 1 << 30  # the ids of slivers begin here
_FIRST_VICTIM = 800  # oom_score_adj; the OOM killer prefers it to the node's own programs and to slivers


@dataclass(frozen=True, slots=True)
class User:
    """A numeric user; it needs no name. groups: ids in addition to `gid`, such as that of /dev/kvm."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a confined program.

    memory, scratch: bytes of all its processes together. data: bytes of each process (RLIMIT_DATA).
    file: bytes of each file that it writes. cpu: seconds of CPU time of each process. files: open files of each
    process. processes: processes and threads of its user.
    """

    memory: int
    data: int
    cpu: int
    file: int
    files: int = 256
    processes: int = 256
    scratch: int = 16 << 20


@dataclass(frozen=True, slots=True)
class View:
    """The paths in addition to /usr. reads, writes: path inside → path on the node. devices: same path inside."""

    reads: Mapping[str, Path]
    writes: Mapping[str, Path]
    devices: tuple[str, ...] = ()


def user(text: str, setting: str = "importer.user") -> User:
    """The user of a setting: a name or `uid:gid`. Raises Refused for root and unknown users."""
    if re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", text):
        uid, _, gid = text.partition(":")
        found = User(int(uid), int(gid))
    else:
        try:
            entry = pwd.getpwnam(text)
        except KeyError:
            hint = f"systemd-sysusers, or set {setting} to uid:gid"
            raise invalid(setting, f"there is no user {text!r}", hint) from None
        found = User(entry.pw_uid, entry.pw_gid)
    if not (0 < found.uid < _SLIVERS and 0 < found.gid < _SLIVERS):
        raise invalid(setting, f"{text!r} is root or may be a sliver's", "a system user of its own")
    return found


def words(
    program: Sequence[str],
    who: User | None,
    bounds: Bounds,
    view: View,
    filter_fd: int,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    keep_caps: Sequence[str] = (),
) -> list[str]:
    """The command line that runs `program` confined. Pure.

    who: None means root with the capabilities `keep_caps` only. filter_fd: a descriptor of a file with
    seccomp_filter.program().
    """
    line = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    line += ["--die-with-parent", "--new-session", "--hostname", "import", "--seccomp", str(filter_fd)]
    line += ["--clearenv"]
    for name, value in {**_ENVIRONMENT, **env}.items():
        line += ["--setenv", name, value]
    line += ["--cap-drop", "ALL"]
    for capability in keep_caps if who is None else _BECOMING:
        line += ["--cap-add", capability]
    line += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
    for name in ("bin", "sbin", "lib", "lib64"):
        line += ["--symlink", f"usr/{name}", f"/{name}"]
    for path in _ETC:
        line += ["--ro-bind-try", path, path]
    line += ["--perms", "0755", "--dir", "/var", "--perms", "1777", "--size", str(bounds.scratch), "--tmpfs", SCRATCH]
    line += ["--symlink", SCRATCH.lstrip("/"), "/tmp"]
    for how, bound in (("--ro-bind", view.reads), ("--bind", view.writes)):
        for inside, outside in bound.items():
            above = [str(path) for path in reversed(Path(inside).parents)][1:]
            line += [word for path in above for word in ("--perms", "0755", "--dir", path)]
            line += [how, str(outside), inside]
    for device in view.devices:
        line += ["--dev-bind", device, device]
    return [*line, "--chdir", "/", "--", *(_become(who) if who else ()), *_limited(bounds), *program]


def _become(who: User) -> list[str]:
    groups = ["--groups", ",".join(map(str, who.groups))] if who.groups else ["--clear-groups"]
    return [
        "setpriv", f"--reuid={who.uid}", f"--regid={who.gid}", *groups,
        "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--",
    ]  # fmt: skip


def _limited(bounds: Bounds) -> list[str]:
    return [
        "prlimit", f"--data={bounds.data}", f"--cpu={bounds.cpu}", f"--fsize={bounds.file}", f"--nofile={bounds.files}",
        f"--nproc={bounds.processes}", "--core=0", "--",
    ]  # fmt: skip


def grouped(line: Sequence[str], groups: Sequence[Path]) -> list[str]:
    """A command line that runs `line` in existing cgroups, with a high OOM score. Pure."""
    joined = "".join(f"echo $$ >{shlex.quote(str(group / 'cgroup.procs'))} && " for group in groups)
    return ["sh", "-c", f'{joined}echo {_FIRST_VICTIM} >/proc/self/oom_score_adj && exec "$@"', "sh", *line]


def scoped(line: Sequence[str], bounds: Bounds, name: str) -> list[str]:
    """A command line that runs `line` in a systemd scope of its own, for cgroup v2 under systemd. Pure."""
    properties = [f"MemoryMax={bounds.memory}", "MemorySwapMax=0", f"TasksMax={bounds.processes}"]
    asked = [word for one in properties for word in ("-p", one)]
    unit = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={name}", *asked, "--"]
    return [*unit, *grouped(line, ())]


@contextlib.contextmanager
def prepared(
    program: Sequence[str],
    who: User | None,
    bounds: Bounds,
    view: View,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    keep_caps: Sequence[str] = (),
) -> Iterator[tuple[list[str], int]]:
    """The complete command line that runs `program` confined, and the file descriptor that it must inherit.

    Its cgroups exist until the context ends.
    """
    name = f"{cgroup.IMPORTER}{secrets.token_hex(4)}"
    filter_fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        os.write(filter_fd, seccomp_filter.program())
        os.lseek(filter_fd, 0, os.SEEK_SET)
        line = words(program, who, bounds, view, filter_fd, env=env, keep_caps=keep_caps)
        if cgroup.version() == "v2" and _SYSTEMD.is_dir():
            yield scoped(line, bounds, name), filter_fd
        else:
            with cgroup.own_groups(name, memory=bounds.memory, processes=bounds.processes) as groups:
                yield grouped(line, groups), filter_fd
    finally:
        os.close(filter_fd)


def run(program: Sequence[str], who: User, bounds: Bounds, view: View, *, timeout: float) -> bytes:
    """Run a confined program and return its standard output. timeout: seconds. Raises CommandFailed."""
    with prepared(program, who, bounds, view) as (line, fd):
        return command.run(line, timeout=timeout, keep=(fd,))


@contextlib.contextmanager
def converse(
    program: Sequence[str],
    who: User,
    bounds: Bounds,
    view: View,
    *,
    timeout: float,
    env: Mapping[str, str],
    keep: Sequence[int] = (),
) -> Iterator[Conversation]:
    """Run a confined program as command.converse does."""
    with (
        prepared(program, who, bounds, view, env=env) as (line, fd),
        command.converse(line, timeout=timeout, keep=(fd, *keep)) as talk,
    ):
        yield talk

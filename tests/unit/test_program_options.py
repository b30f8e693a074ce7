"""tools/program_options.py: what it reads from traces, and the options of programs that are traced for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import program_options
import pytest

from slicemgr.builder import guest_kernel

TOOL = Path(program_options.__file__)
SAID = """\
100   execve("/usr/bin/p", ["p", "/proc/self/io"], 0x7ffe /* 20 vars */) = 0
100   openat(AT_FDCWD, "/proc/self/smaps", O_RDONLY) = 3
100   openat(AT_FDCWD, "/proc/pressure/cpu", O_RDONLY) = -1 ENOENT (No such file or directory)
100   write(1, "/dev/fuse AF_VSOCK", 18) = 18
100   io_uring_setup(8, {flags=0}) = -1 ENOSYS (Function not implemented)
100   socket(AF_INET6, SOCK_STREAM, IPPROTO_TCP) = -1 EAFNOSUPPORT (Address family not supported by protocol)
101   accept4(5,  <unfinished ...>
100   fcntl(4, F_SETLK, {l_type=F_RDLCK}) = 0
101   <... accept4 resumed>{sa_family=AF_INET, sin_port=htons(1)}, [16], 0) = 6
101   --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---
101   +++ exited with 0 +++
"""


def options(said: str) -> dict[str, list[str]]:
    return program_options.needed(program_options.read(said.splitlines()), program_options.table())


def test_options_follow_from_calls_constants_and_files_that_were_used() -> None:
    assert options(SAID) == {
        "BINFMT_ELF": ["execve"],
        "FILE_LOCKING": ["F_SETLK"],
        "INET": ["AF_INET"],
        "NET": ["accept4"],
        "PROC_FS": ["/proc/self/smaps"],
        "PROC_PAGE_MONITOR": ["/proc/self/smaps"],
    }


def test_what_the_tracing_kernel_lacks_or_a_program_writes_is_no_evidence() -> None:
    found = options(SAID.replace("= -1 ENOENT", "= 4 ENOENT").replace("= -1 ENOSYS", "= 4").replace("-1 EAF", "5 EAF"))
    assert found.keys() - options(SAID).keys() == {"PSI", "IO_URING", "IPV6"}


@pytest.mark.parametrize("name", program_options.LOADS)
def test_a_program_at_work_needs_no_more_than_its_kernel_has(name: str) -> None:
    """Traced for real. The control: an option that the trace shows is taken from the configuration."""
    package, trace = program_options.trace_load(name)
    known = guest_kernel.manifest().programs[name]
    assert known.traced.split()[0] == package.split()[0]
    found = program_options.needed(trace, program_options.table())
    config = guest_kernel.wanted((name,))
    assert {"EPOLL", "FUTEX", "INET"} <= found.keys() <= guest_kernel.settings(config).keys()
    assert program_options.lacking(found, config) == []
    assert program_options.lacking(found, config.replace("CONFIG_EPOLL=y\n", "")) == ["EPOLL"]


def test_redis_needs_more_than_the_base() -> None:
    _, trace = program_options.trace_load("redis")
    found = program_options.needed(trace, program_options.table())
    assert program_options.lacking(found, guest_kernel.wanted(())) == ["PROC_PAGE_MONITOR"]


def test_a_command_of_the_users(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(guest_kernel.wanted(()).replace("CONFIG_PACKET=y\n", ""))
    script = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()"
    words = [sys.executable, str(TOOL), "--config", str(config), "--", "/usr/bin/python3", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the kernel lacks PACKET\n")
    assert '    "PACKET",  # AF_PACKET\n' in done.stdout
    config.write_text(guest_kernel.wanted(()))
    assert subprocess.run(words, capture_output=True).returncode == 0

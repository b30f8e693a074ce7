"""Find the options of Linux that a program needs, by its system calls, and compare them with those of a thin kernel.

    .venv/bin/python tools/program_options.py redis
    .venv/bin/python tools/program_options.py -- COMMAND …

The first form starts a program of `images/kernel-thin/kernel.toml`, has it work, and compares with its options and
those of the base. The second form traces a command until it ends, and compares with the base. --config names the
configuration of another kernel. It prints the options with their evidence in the form of kernel.toml, and ends with 1
if the kernel lacks some. It needs strace. `kernel_options.toml` says which calls, constants and files need which
options. After Lupine's manifests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr.builder import guest_kernel
from slicemgr.loads.guest import NGINX_PORT, REDIS_PORT

TABLE = Path(__file__).with_name("kernel_options.toml")
_LINE = re.compile(r"(?:[0-9]+ +)?(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)", re.ASCII)
_ERROR = re.compile(r"= -1 (E[A-Z0-9]+)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_WORD = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
# After these a program continues in another way, so it needs nothing.
_UNKNOWN = {"ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT"}
_WITH_PATH = {
    "access", "execve", "faccessat", "faccessat2", "lstat", "newfstatat", "open", "openat", "openat2", "readlink",
    "readlinkat", "stat", "statfs", "statx",
}  # fmt: skip
_EVIDENCE = 80  # columns of it that are printed
_UP, _END = 30.0, 120.0  # seconds until a traced server answers, and until it has ended
_NGINX = """daemon off;
pid {here}/nginx.pid;
error_log stderr;
thread_pool default threads=2;
events {{ }}
http {{
    access_log {here}/access.log;
    sendfile on;
    tcp_nopush on;
    aio threads;
    gzip on;
    server {{
        listen 127.0.0.1:{port};
        root {here};
        location /direct {{ alias {here}/large; directio 512; }}
    }}
}}
"""
_PYTHON = """
import asyncio, fcntl, mmap, multiprocessing, os, random, select, signal, socket, sqlite3, subprocess, sys, tempfile
import threading, time

def square(number):
    return number * number

async def echo():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(b"word\\n")
    assert await reader.readline() == b"word\\n"
    writer.close()
    server.close()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(1)", stdout=asyncio.subprocess.PIPE)
    await child.communicate()

if __name__ == "__main__":
    asyncio.run(echo())
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(8))[-1] == 49
    worker = threading.Thread(target=time.sleep, args=(0.01,))
    worker.start()
    worker.join()
    with tempfile.TemporaryFile() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(random.randbytes(4096))
        file.flush()
        mmap.mmap(file.fileno(), 4096).close()
    with sqlite3.connect("rows.db") as rows:
        rows.execute("CREATE TABLE t (a)")
        rows.execute("INSERT INTO t VALUES (1)")
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    select.select([], [], [], 0.05)
    subprocess.run(["true"], check=True)
    os.sched_getaffinity(0)
"""


@dataclass(slots=True)
class Trace:
    """What a program has used: the names of system calls, constants in their arguments, and absolute paths."""

    calls: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Load:
    """How a program is had to work. files: one of them is the program. run: called with the program's file, an empty
    directory and the words that trace a command.
    """

    files: Sequence[str]
    run: Callable[[str, Path, Sequence[str]], None]
    helpers: Sequence[str] = ()


def read(lines: Iterable[str]) -> Trace:
    """The content of strace's output. Calls that the tracing kernel itself lacks are left out."""
    trace = Trace()
    for line in lines:
        match = _LINE.match(line)
        failed = _ERROR.search(line)
        if match is None or (failed and failed[1] in _UNKNOWN):
            continue
        name, arguments = match.groups()
        trace.calls.add(name)
        trace.words.update(_WORD.findall(_STRING.sub("", arguments)))
        path = _STRING.search(arguments)
        if name in _WITH_PATH and not failed and path and path[1].startswith("/"):
            trace.files.add(path[1])
    return trace


def table() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The content of kernel_options.toml."""
    return tomllib.loads(TABLE.read_text())


def needed(trace: Trace, known: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """The options that a program needs, without `CONFIG_`, in order, each with its evidence."""
    found: dict[str, set[str]] = {}
    for have, rules in ((trace.calls, known["calls"]), (trace.words, known["words"])):
        for option, names in rules.items():
            found.setdefault(option, set()).update(have.intersection(names))
    for option, patterns in known["files"].items():
        wanted = re.compile("|".join(patterns))
        found.setdefault(option, set()).update(match[0] for match in map(wanted.match, trace.files) if match)
    return {option: sorted(evidence) for option, evidence in sorted(found.items()) if evidence}


def lacking(options: Iterable[str], config: str) -> list[str]:
    """The options that a kernel with this configuration lacks."""
    have = guest_kernel.settings(config)
    return [option for option in options if have.get(option) != "y"]


def trace_command(words: Sequence[str]) -> Trace:
    """What a command and its children use until they end. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory(prefix="trace-") as place:
        output = Path(place) / "calls"
        subprocess.run([*tracing(output), *words], check=True)
        return read(output.read_text(errors="replace").splitlines())


def trace_load(name: str) -> tuple[str, Trace]:
    """Trace a program of LOADS at work: its package with its version, and what it uses.

    Raises LookupError if the program or strace is not installed, and OSError or SubprocessError if it does not work.
    """
    load = LOADS[name]
    for helper in load.helpers:
        _program([helper])
    program = _program(load.files)
    with tempfile.TemporaryDirectory(prefix="trace-") as place:
        output, work = Path(place) / "calls", Path(place) / "work"
        work.mkdir()
        load.run(program, work, tracing(output))
        return package(program), read(output.read_text(errors="replace").splitlines())


def tracing(output: Path) -> list[str]:
    """The words before a command that is to be traced with its children."""
    return [_program(["strace"]), "-f", "-qq", "-o", str(output)]


def package(program: str) -> str:
    """The Debian package of a program's file and its version, or its path if it is of no package."""
    file = os.path.realpath(program)
    names = (file, file.removeprefix("/usr"))  # dpkg knows a program of /bin by that name
    owner = subprocess.run(["dpkg-query", "--search", *names], capture_output=True, text=True).stdout.partition(":")[0]
    if not owner:
        return file
    form = "--showformat=${Package} ${Version}"
    return subprocess.run(["dpkg-query", "--show", form, owner], capture_output=True, check=True, text=True).stdout


def _program(files: Sequence[str]) -> str:
    for file in files:
        if found := shutil.which(file, path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
            return found
    raise LookupError(f"there is no {files[0]}")


# --- programs at work -------------------------------------------------------------------------------------------------


def _redis(program: str, work: Path, tracing: Sequence[str]) -> None:
    server = work / "redis-server"  # the file has another name where Debian's redis-tools alone is installed
    server.symlink_to(program)
    words = [str(server), "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--dir", str(work), "--appendonly", "yes"]
    ask = ["redis-cli", "-p", str(REDIS_PORT)]
    with _running([*tracing, *words], lambda: _quiet([*ask, "ping"])):
        _said(["redis-benchmark", "-p", str(REDIS_PORT), "-c", "8", "-n", "500", "-t", "set,get,lpush,zadd", "-q"])
        for request in ("bgsave", "bgrewriteaof"):
            _said([*ask, request])
            _await(lambda: "in_progress:1" not in _said([*ask, "info", "persistence"]))
        _said([*ask, "shutdown", "save"])


def _nginx(program: str, work: Path, tracing: Sequence[str]) -> None:
    for name in ("page", "large"):
        (work / name).write_bytes(b"x" * (612 if name == "page" else 1 << 20))
    configuration = work / "nginx.conf"
    configuration.write_text(_NGINX.format(here=work, port=NGINX_PORT))
    work.chmod(0o755)
    work.parent.chmod(0o755)  # its workers are not root
    words = [program, "-e", "stderr", "-p", str(work), "-c", str(configuration)]
    with _running([*tracing, *words], lambda: _get("page")):
        for name in ("page", "large", "direct"):
            if not _get(name):
                raise OSError(f"nginx did not send {name}")
        os.kill(int((work / "nginx.pid").read_text()), signal.SIGQUIT)


def _python(program: str, work: Path, tracing: Sequence[str]) -> None:
    script = work / "work.py"
    script.write_text(_PYTHON)
    subprocess.run([*tracing, program, "-I", str(script)], cwd=work, check=True, timeout=_END)


LOADS: Mapping[str, Load] = {
    "redis": Load(("redis-server", "redis-check-rdb"), _redis, ("redis-cli", "redis-benchmark")),
    "nginx": Load(("nginx",), _nginx),
    "python": Load(("/usr/bin/python3",), _python),
}


@contextmanager
def _running(words: Sequence[str], answers: Callable[[], bool]) -> Iterator[None]:
    """Within the context, a traced server runs and answers; it must have ended by itself soon after."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            _await(lambda: server.poll() is not None or answers())
            yield
            server.wait(_END)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _UP
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the program does not answer")
        time.sleep(0.05)


def _get(name: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{NGINX_PORT}/{name}", timeout=_UP) as answer:
            return bool(answer.read())
    except OSError:
        return False


def _quiet(words: Sequence[str]) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0


def _said(words: Sequence[str]) -> str:
    return subprocess.run(words, capture_output=True, check=True, text=True, timeout=_END).stdout


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, help="the configuration to compare with")
    parser.add_argument(
        "words", nargs="+", metavar="PROGRAM|COMMAND", help=f"{', '.join(LOADS)}, or `--` and a command"
    )
    chosen = parser.parse_args()
    known = len(chosen.words) == 1 and chosen.words[0] in LOADS
    try:
        if known:
            version, trace = trace_load(chosen.words[0])
        else:
            version, trace = package(_program(chosen.words[:1])), trace_command(chosen.words)
    except (LookupError, OSError, subprocess.SubprocessError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    found = needed(trace, table())
    config = chosen.config.read_text() if chosen.config else guest_kernel.wanted(chosen.words if known else ())
    lines = [
        f'    "{option}",  # {textwrap.shorten(", ".join(evidence), _EVIDENCE, placeholder=" …")}'
        for option, evidence in found.items()
    ]
    print("\n".join([f'traced = "{version}"', "options = [", *lines, "]"]))
    missing = lacking(found, config)
    if missing:
        print(f"the kernel lacks {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

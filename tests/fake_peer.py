"""Fakes of Docker, Podman, LXD, plain LXC and related programs for `bench peers`: `WORLD NAME ARGUMENTS…`.

A container is a process that sends an ssh banner at its first port, with a file in WORLD/there that has its process
ID. WORLD/log has a line for each call. WORLD/broken-NAME makes a program fail with the text of the file. WORLD/slow has
the seconds of a creation, WORLD/mute suppresses the banners, WORLD/room has the number of containers that fit.

Modules are imported where they are used: a run starts hundreds of these, which do almost nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

WORLD, NAME, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
THERE = WORLD / "there"


def log(more: str = "") -> None:
    line = " ".join([NAME, *WORDS]) + (f" <<< {more.strip()}" if more else "")
    with (WORLD / "log").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line.replace("\n", "; ") + "\n")


def serve(port: int) -> None:
    """Send banners until the process is killed."""
    import socket

    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                if not (WORLD / "mute").exists():
                    connection.sendall(b"SSH-2.0-fake\r\n")


def begin(name: str, port: int) -> None:
    """Start a container, which continues to run, and wait until it listens."""
    import subprocess

    slow = WORLD / "slow"
    if slow.exists():
        time.sleep(float(slow.read_text()))
    argv = [sys.executable, "-I", "-S", __file__, str(WORLD), "container", str(port)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, start_new_session=True, **quiet)  # type: ignore[call-overload]
    (THERE / name).write_text(str(process.pid))


def end(name: str) -> None:
    file = THERE / name
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)
    file.unlink()


def keeper() -> int:
    """The first process and its parent, as unshare creates them: when the first ends, all others are killed."""
    first = os.fork()
    if not first:
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    os.waitpid(first, 0)
    while others := [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and within(int(one.name))]:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return 0


def within(pid: int) -> bool:
    """Whether a process ID belongs to another fake of this world that is not ending."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return pid != os.getpid() and __file__.encode() in words and str(WORLD).encode() in words
    return False


def enter() -> int:
    """Run a program, which fails after the first process has ended."""
    words = WORDS[WORDS.index("--") + 1 :]
    if "--target" in WORDS and not Path(f"/proc/{WORDS[WORDS.index('--target') + 1]}").exists():
        sys.stderr.write("nsenter: cannot open namespace\n")
        return 1
    return os.execvp(words[0], words)


def engine() -> int:
    verb = next(one for one in WORDS if one in ("version", "import", "run", "rm", "inspect"))
    match verb:
        case "version":
            return 0 if any(THERE.glob("daemon-*")) else 1
        case "run":
            room = WORLD / "room"
            if room.exists() and len(list(THERE.glob("bench-*"))) >= int(room.read_text()):
                sys.stderr.write("fork: Resource temporarily unavailable\n")
                return 125
            begin(WORDS[WORDS.index("--name") + 1], int(WORDS[WORDS.index("--publish") + 1].partition(":")[0]))
        case "rm":
            end(WORDS[-1])
        case "inspect":
            print((THERE / WORDS[-1]).read_text())
    return 0


def lxd(text: str) -> int:
    import json

    match WORDS[0]:
        case "launch":
            begin(WORDS[-1], int(json.loads(text)["devices"]["ssh"]["listen"].rpartition(":")[2]))
        case "delete":
            end(WORDS[-1])
        case "query":
            print(json.dumps({"pid": int((THERE / WORDS[1].split("/")[3]).read_text())}))
    return 0


def rules(text: str) -> int:
    """Start or end the banner of a port that a rule forwards to port 22."""
    for line in text.splitlines():
        if line.endswith(":22"):
            port = line.split()[line.split().index("--dport") + 1]
            if line.startswith("-A"):
                begin(f"rule-{port}", int(port))
            else:
                end(f"rule-{port}")
    return 0


def btrfs() -> int:
    import shutil

    match WORDS[:2]:
        case ["subvolume", "snapshot"]:
            shutil.copytree(WORDS[2], WORDS[3], symlinks=True)
        case ["subvolume", "delete"]:
            shutil.rmtree(WORDS[2])
    return 0


def iperf3() -> int:
    import json

    if "-s" in WORDS:
        print("Server listening", flush=True)
        sys.stdin.read()
        return 0
    rate = 8e9 if "-R" in WORDS else 10e9
    whole = {"start": 0, "seconds": 1, "bits_per_second": rate}
    print(json.dumps({"intervals": [{"sum": whole}], "end": {"sum_received": {"bits_per_second": rate}}}))
    return 0


def daemon() -> int:
    (THERE / f"daemon-{os.getpid()}").write_text(str(os.getpid()))
    while True:
        time.sleep(60)


PROGRAMS = {"unshare": keeper, "nsenter": enter, "docker": engine, "podman": engine, "btrfs": btrfs, "iperf3": iperf3}
DAEMONS = ("dockerd", "systemd-nspawn", "lxd --group root", "incusd --group root")


def client(text: str) -> int:
    """Programs that read their input, or that do almost nothing."""
    if "waitready" in WORDS:
        return 0 if any(THERE.glob("daemon-*")) else 1
    match NAME:
        case "lxc" | "incus":
            return lxd(text)
        case "iptables-restore":
            return rules(text)
        case "lxc-info":
            print(1)
        case "lxc-destroy":
            import shutil

            shutil.rmtree(Path(WORDS[WORDS.index("--lxcpath") + 1]) / WORDS[WORDS.index("--name") + 1])
    return 0


def main() -> int:
    if NAME == "container":
        serve(int(WORDS[0]))
    if "--version" in WORDS:
        print(f"{NAME} 1.0 (fake)\nand more")
        return 0
    reads = NAME in ("iptables-restore", "ip") or WORDS[:1] == ["launch"] or WORDS[-2:] == ["init", "--preseed"]
    reads = reads and NAME != "nsenter"
    text = sys.stdin.read() if reads else ""
    if NAME not in ("nsenter", "unshare"):
        log(text)
    broken = WORLD / f"broken-{NAME}"
    if broken.exists():
        sys.stderr.write(broken.read_text())
        return 1
    if NAME in DAEMONS or " ".join([NAME, *WORDS]) in DAEMONS:
        return daemon()
    return PROGRAMS[NAME]() if NAME in PROGRAMS else client(text)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The set-up and the tests on a Debian that has only the packages for `git clone` and `make`.

`tools/bare.py` installs a minimal Debian once, clones the last commit into a layer above it, and runs `tools/setup`,
`make check` and the unit tests there; other arguments are passed to pytest. The layer is deleted at the end. Programs
in it have their own file system, processes, devices and host name and see only copies of this host's files. They use
the network of this host to reach the package indexes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from prodhost import overlay

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".run" / "bare"
SUITE = "bookworm"
PACKAGES = ("ca-certificates", "git", "make")  # the requirements of the README before `make`
CLONE = "root/slicemgr"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TESTS = ("-m", "not long", "tests/unit", "tests/golden")
# Within the new namespaces: the mounts of a container, and then another root. By pivot_root, because the kernel refuses
# user namespaces to a process in a chroot. The shell stays the first process, and ends orphans as an init does.
ENTER = """
set -e
root=$1; shift
hostname bare
mount -t proc proc "$root/proc"
mount -o bind,ro /sys "$root/sys"
mount -t tmpfs -o mode=755,size=64m dev "$root/dev"
for one in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${one%:*}" c 1 "${one#*:}"
done
mknod -m 666 "$root/dev/tty" c 5 0
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,size=512m shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for one in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${one#*:}" "$root/dev/${one%:*}"; done
mkdir "$root/outside"
cd "$root"
pivot_root . outside
exec chroot . sh -c 'umount -l /outside && rmdir /outside && "$@"; exit $?' sh "$@"
"""


def say(text: str) -> None:
    print(f"bare: {text}", file=sys.stderr, flush=True)


def ensure_tree() -> Path:
    """The tree of a minimal Debian, installed once for each list of packages."""
    from slicemgr.builder import recipe

    key = hashlib.sha256("\n".join([SUITE, *PACKAGES]).encode()).hexdigest()[:12]
    tree = CACHE / f"{SUITE}-{key}"
    if tree.exists():
        return tree
    for old in CACHE.glob(f"{SUITE}-*"):
        shutil.rmtree(old)
    say(f"installing a minimal Debian {SUITE} (once)")
    unfinished = CACHE / f".{SUITE}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    options = recipe.host_apt_options()
    sources = recipe.host_sources(recipe.Recipe(SUITE, "amd64", PACKAGES, 0))
    words = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--quiet"]
    words += [f"--include={','.join(PACKAGES)}", *(f"--aptopt={one}" for one in options)]
    words += [SUITE, str(unfinished), *sources]
    subprocess.run(["unshare", "--mount", *words], check=True, stdin=subprocess.DEVNULL)
    (unfinished / "etc/apt/apt.conf.d/90mirrors").write_text("".join(f"{one}\n" for one in options))
    unfinished.rename(tree)
    return tree


def prepare(root: Path) -> None:
    """Clone with the history, which two tests read, and copy the files that are needed to reach the package indexes."""
    git = ["git", "-c", f"safe.directory={REPO}", "clone", "--quiet", "--no-hardlinks"]
    subprocess.run([*git, f"file://{REPO}", root / CLONE], check=True, stdin=subprocess.DEVNULL)
    for name, content in (("hosts", "127.0.0.1 localhost bare\n"), ("resolv.conf", None)):
        target = root / "etc" / name
        target.unlink(missing_ok=True)
        target.write_text(Path("/etc", name).read_text() if content is None else content)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / "root/certificates.crt")


def environment() -> dict[str, str]:
    """The environment of programs: of this process, only the settings for Python's package index."""
    found = {name: value for name, value in os.environ.items() if name.endswith(("_proxy", "_PROXY"))}
    found |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
    if CERTIFICATES.exists():
        found |= {"PIP_CERT": "/root/certificates.crt", "SSL_CERT_FILE": "/root/certificates.crt"}
    return found


def inside(root: Path, *words: str, capture: bool = False) -> str:
    """Run a program in the clone and return its output if `capture`. Raises CalledProcessError."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup"]
    shell = ["sh", "-c", ENTER, "enter", str(root), "env", "--chdir", f"/{CLONE}", *words]
    done = subprocess.run(
        ["unshare", *namespaces, *shell], check=True, env=environment(), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE if capture else None,
    )  # fmt: skip
    return done.stdout or ""


def asked_for(root: Path) -> set[str]:
    """The packages that were installed explicitly and not as a dependency."""
    return set(inside(root, "apt-mark", "showmanual", capture=True).split())


def installed(root: Path) -> set[str]:
    status = inside(root, "dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", capture=True)
    return {line.split()[1] for line in status.splitlines() if line.startswith("installed ")}


def listed() -> set[str]:
    lines = (line.partition("#")[0].strip() for line in (REPO / "tools/packages.txt").read_text().splitlines())
    return set(filter(None, lines))


def run(root: Path, tests: list[str]) -> int:
    """Run the set-up, the checks and the tests in a tree. Returns the exit status of the tests."""
    prepare(root)
    before = asked_for(root)
    say("running tools/setup")
    inside(root, "tools/setup")
    more, fewer = asked_for(root) - before - listed(), listed() - installed(root)
    if more or fewer:
        say(
            f"the set-up does not follow tools/packages.txt: {sorted(more)} are not listed, {sorted(fewer)} are missing"
        )
        return 1
    say("running tools/setup again, make check and the tests")
    inside(root, "tools/setup")
    inside(root, "make", "check")
    try:
        inside(
            root,
            "tools/reachable",
            ".venv/bin/python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(tests or TESTS),
        )
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


def main() -> int:
    if "--private" not in sys.argv:  # a killed run leaves no mounts
        return subprocess.run(["unshare", "--mount", sys.executable, __file__, "--private", *sys.argv[1:]]).returncode
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time, as long as this process lives
        for killed in CACHE.glob("run.*"):
            shutil.rmtree(killed)
        with tempfile.TemporaryDirectory(prefix="run.", dir=CACHE) as work, overlay(ensure_tree(), Path(work)) as root:
            return run(root, [word for word in sys.argv[1:] if word != "--private"])


if __name__ == "__main__":
    sys.exit(main())

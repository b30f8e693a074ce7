"""The installation into the tree of the production-like host cannot change the host that runs it.

The folders of the host are replaced by copies, because the weakened control changes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import prodhost

STAGE = """
import os, pathlib, stat, subprocess, sys
root, script = pathlib.Path(sys.argv[1]), sys.argv[3]
for folder in ("/etc/ssl/certs", "/dev"):
    subprocess.run(["mount", "-t", "tmpfs", "machine", folder], check=True)
os.mknod("/dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
pathlib.Path("/etc/ssl/certs/given").touch()
for name in ("usr", "dev", "proc", "root", "etc/ssl/certs"):
    (root / name).mkdir(parents=True)
for name in ("bin", "sbin", "lib", "lib64"):
    (root / name).symlink_to(f"usr/{name}")
subprocess.run(["mount", "-o", "bind,ro", "/usr", root / "usr"], check=True)
"""
SAFE = """
import prodhost
prodhost.CACHE = pathlib.Path(sys.argv[2])
prodhost.in_tree(root, script)
"""
WEAKENED = """
for name in ("etc/ssl/certs", "proc", "dev"):
    subprocess.run(["mount", "--bind", f"/{name}", root / name], check=True)
subprocess.run(["chroot", root, "sh", "-c", script], check=True, stdout=sys.stderr)
"""
FOUND = """
print(*sorted(one.name for folder in ("/etc/ssl/certs", "/dev") for one in pathlib.Path(folder).iterdir()))
"""
HOSTNAME = "/proc/sys/kernel/hostname"


def result(program: str, place: Path, script: str) -> subprocess.CompletedProcess[str]:
    """stdout: the content of the host's folders afterwards; stderr: the output of the script."""
    (place / "root").mkdir(parents=True)
    words = [sys.executable, "-c", STAGE + program + FOUND, str(place / "root"), str(place / "kept"), script]
    environment = {**os.environ, "PYTHONPATH": str(prodhost.REPO / "tools"), "PIP_FIND_LINKS": ""}
    words = ["unshare", "--mount", "--", *words]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_what_is_made_in_the_tree_is_not_made_on_the_machine(tmp_path: Path) -> None:
    script = "for file in /etc/ssl/certs/made /dev/made; do echo > $file; done; rm -f /etc/ssl/certs/given; true"
    safe, weakened = result(SAFE, tmp_path / "safe", script), result(WEAKENED, tmp_path / "weakened", script)
    assert safe.stdout.split() == ["given", "null"], safe.stderr
    assert weakened.stdout.split() == ["made", "made", "null"], weakened.stderr


def test_the_kernel_of_the_machine_cannot_be_set_from_the_tree(tmp_path: Path) -> None:
    script = f"name=$(cat {HOSTNAME}); echo $name > {HOSTNAME} && echo set >&2 || true"  # what it is already
    safe, weakened = result(SAFE, tmp_path / "safe", script), result(WEAKENED, tmp_path / "weakened", script)
    assert "Read-only" in safe.stderr and "set\n" not in safe.stderr
    assert weakened.stderr == "set\n"


def test_programs_find_what_they_need(tmp_path: Path) -> None:
    script = "set -e; head -c 8 /dev/urandom > /dev/null; ls /etc/ssl/certs; echo kept > /root/.cache/pip/kept"
    told = result(SAFE, tmp_path, script)
    assert told.stderr == "given\n"
    assert (tmp_path / "kept" / "pip" / "kept").read_text() == "kept\n"

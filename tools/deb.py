#!/usr/bin/env python3
"""Build the Debian packages slicemgr, slicemgr-service and slicemgr-node: `make deb`, or `tools/deb.py [FOLDER]`.

They are for the Debian release of this host, because they hold a Python environment with compiled modules. Their texts
and maintainer scripts are in tools/debian; the units and settings are those of docs/how-to/install.md. The version is
that of the program with the revision of $REVISION (1), so that a second build of the same version is an upgrade.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from slicemgr import __version__

REPO = Path(__file__).resolve().parent.parent
DEBIAN = REPO / "tools" / "debian"
UNITS = REPO / "tools" / "units"
HOME = Path("usr/lib/slicemgr")  # the environment, below the root
LAUNCHER = Path("usr/lib/libvirt/slicemgr-launcher")  # where libvirt's AppArmor profile lets it start a program
PROGRAMS = ("slicectl", "slicemgr")
PACKAGES = ("slicemgr", "slicemgr-service", "slicemgr-node")
SERVICE_UNITS = ("slicemgr-web.service", "slicemgr-signer.service", "slicemgr-hub.service")
NODE_UNITS = ("slicemgr-agent.service", "slicemgr-link.service")
SCRIPTS = ("postinst", "prerm", "postrm")
LIBRARIES = ("libvirt0", "libxtables12", "libseccomp2")  # of libvirt-python, python-iptables and the launcher
_BUILD_ONLY = "# only to build"


def run(*words: str | Path, **environment: str) -> str:
    """The output of a program that imports no modules of this process' folders. Raises CalledProcessError."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    settings = {**inherited, **environment}
    done = subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=settings)
    return done.stdout


def node_dependencies(text: str) -> list[str]:
    """The packages that a node needs to run, of tools/packages.txt."""
    needed, found, _ = text.partition(f"\n{_BUILD_ONLY}")
    if not found:
        raise ValueError(f"tools/packages.txt has no section {_BUILD_ONLY!r}")
    lines = (line.partition("#")[0].strip() for line in needed.splitlines())
    return [line for line in lines if line and line != "python3"]


def values(revision: str) -> dict[str, str]:
    """What replaces @NAME@ in the control files."""
    major, minor = sys.version_info[:2]
    release = re.search(r'^VERSION_ID="?([\d.]+)', Path("/etc/os-release").read_text(), re.MULTILINE)
    libc = run("dpkg-query", "--show", "--showformat", "${Version}", f"libc6:{architecture()}")
    return {
        "VERSION": f"{__version__}-{revision}~deb{release[1] if release else 0}",
        "ARCHITECTURE": architecture(),
        "PYTHON": f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1})",
        "LIBC": libc.partition("-")[0],
        "NODE": ", ".join([*node_dependencies((REPO / "tools/packages.txt").read_text()), *LIBRARIES]),
    }


def architecture() -> str:
    return run("dpkg", "--print-architecture").strip()


# the environment


def make_environment(target: Path, work: Path) -> None:
    """Create the environment of slicemgr at `target`, to be used below HOME: the lock, the program, and its wheel."""
    run("/usr/bin/python3", "-m", "venv", "--without-pip", target)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    wheel = (*pip, "wheel", "--no-build-isolation", "--wheel-dir")
    run(*wheel, work / "wheels", "--require-hashes", "--requirement", REPO / "requirements" / "node.txt")
    run(*wheel, work / "wheels", "--no-deps", REPO, SLICEMGR_PROGRAMS="1")
    install = (*pip, "--python", target / "bin" / "python", "install", "--no-index", "--no-deps", "--no-compile")
    run(*install, *sorted((work / "wheels").glob("*.whl")))
    run(*wheel, target / "share" / "slicemgr", "--no-deps", REPO)


def relocate(environment: Path, home: Path) -> None:
    """Change an environment so that it works at `home`; of its programs only PROGRAMS remain. Compile its modules."""
    programs = environment / "bin"
    python = (programs / "python").resolve()
    for one in programs.iterdir():
        if one.name not in (*PROGRAMS, "python", "python3"):
            one.unlink()
    for name in ("python", "python3"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(python)
    for name in PROGRAMS:
        first, _, rest = (programs / name).read_text().partition("\n")
        if first.removesuffix("3") != f"#!{programs}/python":
            raise ValueError(f"{name} begins with {first!r}, which is no interpreter of {programs}")
        (programs / name).write_text(f"#!{home}/bin/python3\n{rest}")
    config = environment / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(environment), str(home)))
    # Hashes, because dpkg and archives may change times, and no process shall write into the package.
    compile_all = (python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    run(*compile_all, "-s", environment, "-p", home, environment / "lib")


# the packages


def files(root: Path, environment: Path) -> Mapping[str, Mapping[Path, Path]]:
    """The files of each package by their place, besides those of the environment."""
    libexec = Path(sysconfig.get_path("purelib", vars={"base": str(environment)})) / "slicemgr" / "libexec"
    licence = {name: {root / f"usr/share/doc/{name}/copyright": REPO / "LICENSE"} for name in PACKAGES}
    own: dict[str, dict[Path, Path]] = {
        "slicemgr": {
            root / "etc/slicemgr/slicemgr.toml": UNITS / "slicemgr.toml",
            root / "usr/lib/sysusers.d/slicemgr.conf": DEBIAN / "slicemgr/sysusers.conf",
            root / "usr/lib/tmpfiles.d/slicemgr.conf": DEBIAN / "slicemgr/tmpfiles.conf",
            root / "usr/share/doc/slicemgr/CHANGELOG.md": REPO / "CHANGELOG.md",
        },
        "slicemgr-service": {
            **{root / "usr/lib/systemd/system" / one: UNITS / one for one in SERVICE_UNITS},
            root / "usr/lib/sysusers.d/slicemgr-service.conf": UNITS / "sysusers-hub.conf",
            root / "usr/share/doc/slicemgr-service/examples/nginx.conf": REPO / "tools/nginx/slicemgr.conf",
        },
        "slicemgr-node": {
            **{root / "usr/lib/systemd/system" / one: UNITS / one for one in NODE_UNITS},
            root / "usr/lib/sysusers.d/slicemgr-node.conf": UNITS / "sysusers.conf",
            root / "usr/lib/sysctl.d/90-slicemgr.conf": UNITS / "90-slicemgr.conf",
            root / "usr/lib/modules-load.d/slicemgr.conf": UNITS / "modules.conf",
            root / LAUNCHER: libexec / "sliver-launcher",
        },
    }
    return {name: {**own[name], **licence[name]} for name in PACKAGES}


def lay_out(name: str, root: Path, environment: Path, replace: Mapping[str, str]) -> None:
    """Write the tree of a package below `root`: its files, control file and maintainer scripts."""
    for target, source in files(root, environment)[name].items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if target == root / LAUNCHER else 0o644)
        if target.suffix == ".service":
            target.write_text(target.read_text().replace("/opt/slicemgr/", f"/{HOME}/"))
    if name == "slicemgr":
        shutil.copytree(environment, root / HOME, symlinks=True)
        (root / "usr/bin").mkdir()
        for program in PROGRAMS:
            (root / "usr/bin" / program).symlink_to(f"../lib/slicemgr/bin/{program}")
    control = root / "DEBIAN"
    control.mkdir(mode=0o755)
    (control / "control").write_text(_fill((DEBIAN / name / "control").read_text(), replace))
    if (DEBIAN / name / "conffiles").exists():
        shutil.copyfile(DEBIAN / name / "conffiles", control / "conffiles")
    functions = (DEBIAN / "functions.sh").read_text()
    for script in SCRIPTS:
        if (DEBIAN / name / script).exists():
            text = f"#!/bin/sh\n{functions}\n{(DEBIAN / name / script).read_text()}"
            (control / script).write_text(text)
            (control / script).chmod(0o755)


def _fill(text: str, replace: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: replace[found[1]], text)


def build(environment: Path, folder: Path, replace: Mapping[str, str]) -> list[Path]:
    """Build the packages from a relocated environment into `folder`. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for name in PACKAGES:
        with tempfile.TemporaryDirectory() as work:
            root = Path(work) / name
            root.mkdir(mode=0o755)
            lay_out(name, root, environment, replace)
            shown = re.search(r"^Architecture: (\S+)$", (root / "DEBIAN/control").read_text(), re.MULTILINE)
            package = folder / f"{name}_{replace['VERSION']}_{shown[1] if shown else 'all'}.deb"
            run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package)
        built.append(package)
    return built


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=REPO / "dist", help="where the packages go (dist)")
    parser.add_argument("--revision", default=os.environ.get("REVISION", "1"), help="of the packages ($REVISION, 1)")
    arguments = parser.parse_args(words)
    if not re.fullmatch(r"[A-Za-z0-9.+]+", arguments.revision):
        parser.error(f"--revision: {arguments.revision!r} is not a revision; use letters, digits, . and +")
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as work:
        environment = Path(work) / "environment"
        make_environment(environment, Path(work))
        relocate(environment, Path("/") / HOME)
        for one in build(environment, arguments.folder, values(arguments.revision)):
            print(one)
    return 0


if __name__ == "__main__":
    sys.exit(main())

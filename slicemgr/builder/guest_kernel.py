"""Thin guest kernels: built from Debian's kernel source with only the options that a sliver needs.

The idea is Lupine's (Kuo et al., EuroSys 2020): a Linux that is configured for one application is about as small and
fast as a unikernel. `images/kernel-thin/base.config` has the options of every thin kernel. `kernel.toml` beside it has
those that programs add. A kernel has no modules and needs no initrd.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicemgr.config import PACKAGE
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, Refused, invalid

BASE = "thin"
KERNELS = (BASE, "thin-size", "thin-unprotected")
FOLDER = PACKAGE / "images/kernel-thin"

_OPTION = re.compile(r"[A-Z0-9_]+")
_SETTING = re.compile(r"CONFIG_([A-Za-z0-9_]+)=(.+)")
_UNSET = re.compile(r"# CONFIG_([A-Za-z0-9_]+) is not set")
_NAME = re.compile(r"[a-z0-9-]+")
_BUILD_TIME = 7200.0  # seconds for a compilation on a slow machine
_WANTED, _RESULT = "wanted.config", "result"
# The names and the time are fixed, so that the same source, options and compiler give the same bytes.
_ENVIRONMENT = {
    "LC_ALL": "C",
    "KBUILD_BUILD_TIMESTAMP": "1970-01-01 00:00:00 UTC",
    "KBUILD_BUILD_USER": "slicemgr",
    "KBUILD_BUILD_HOST": "slicemgr",
    "KBUILD_BUILD_VERSION": "1",
}
_CONFIGURE = f"""set -eu
mkdir -p /linux /{_RESULT}
[ -e /linux/Makefile ] || tar -C /linux --strip-components=1 -xf /usr/src/"$1".tar.xz
cd /linux
make -s KCONFIG_ALLCONFIG=/{_WANTED} allnoconfig
cp .config /{_RESULT}/config
make -s kernelrelease >/{_RESULT}/release
"""
_COMPILE = f"""set -eu
cd /linux
make -s -j"$1" bzImage
cp arch/x86/boot/bzImage /{_RESULT}/image
objcopy -R .comment -S vmlinux /{_RESULT}/uncompressed
"""

Install = Callable[[Path, Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Program:
    """What a program needs of the kernel. options: without `CONFIG_`; all are set to `y`; the base has some of them.
    traced: the package, with its version, whose tracing found them; "": nothing was traced.
    """

    name: str
    description: str
    options: tuple[str, ...]
    traced: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of kernel.toml. source: the package with the kernel's source. compiler: packages that build it.

    kernels: those besides BASE, by name; for each the options whose values differ from the base.
    """

    source: str
    compiler: tuple[str, ...]
    programs: Mapping[str, Program]
    kernels: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A built kernel. image: a bzImage. uncompressed: the same as an ELF file, which is entered by PVH and so needs no
    time to unpack itself. config: its complete configuration. release: as `uname -r` prints it.
    """

    image: Path
    uncompressed: Path
    config: Path
    release: str


def manifest(file: Path = FOLDER / "kernel.toml") -> Manifest:
    """Read the manifest. Raises Refused, which names the key that is wrong."""
    raw = tomllib.loads(file.read_text())
    found = {}
    for name, said in raw["programs"].items():
        options = tuple(said["options"])
        wrong = next((one for one in options if not _OPTION.fullmatch(one)), None)
        if wrong is not None or not _NAME.fullmatch(name):
            raise invalid(f"programs.{name}", f"{wrong or name!r} is not a name", "letters, digits and _")
        found[name] = Program(name, said["description"], options, said.get("traced", ""))
    kernels = {name: dict(said["options"]) for name, said in raw.get("kernels", {}).items()}
    return Manifest(raw["source"], tuple(raw["compiler"]), found, kernels)


def wanted(programs: Iterable[str], *, kernel: str = BASE, known: Manifest | None = None) -> str:
    """The options of a kernel for `programs`, as the text of a configuration. Raises Refused for an unknown program.

    kernel: one of KERNELS.
    """
    known = known or manifest()
    lines = [(FOLDER / "base.config").read_text()]
    if kernel != BASE:
        lines = [_changed(lines[0], kernel, known.kernels[kernel])]
    have = set(settings(lines[0]))
    for name in sorted(set(programs)):
        if name not in known.programs:
            raise Refused(
                Code.NOT_FOUND,
                f"no program called {name!r} is known for thin kernels",
                hint=f"known: {', '.join(sorted(known.programs))}",
                field="kernel_programs",
            )
        more = [option for option in known.programs[name].options if option not in have]
        have.update(more)
        if more:
            lines.append(f"# {name}\n" + "".join(f"CONFIG_{option}=y\n" for option in more))
    return "\n".join(lines)


def _changed(base: str, kernel: str, values: Mapping[str, str]) -> str:
    rest = [line for line in base.splitlines() if not ((match := _SETTING.fullmatch(line)) and match[1] in values)]
    own = (
        f"# CONFIG_{name} is not set" if value == "n" else f"CONFIG_{name}={value}" for name, value in values.items()
    )
    return "\n".join([*rest, f"\n# {kernel}", *own, ""])


def settings(config: str) -> dict[str, str]:
    """Option → value, of the options that a configuration sets; an option without `CONFIG_`."""
    return {match[1]: match[2] for line in config.splitlines() if (match := _SETTING.fullmatch(line.strip()))}


def missing(asked: str, made: str) -> list[str]:
    """The options that the configuration `made` has not as the configuration `asked` sets them, in order.

    Kconfig leaves out an option whose dependencies are off, and sets one that another selects, without a message.
    """
    have = settings(made)
    other = [name for name, value in settings(asked).items() if have.get(name) != value]
    return other + [name for name in _UNSET.findall(asked) if name in have]


def digest(packages: str, asked: str) -> str:
    """The identity of a kernel: of its source, compiler, options and the way it is built, in hexadecimal."""
    parts = (packages, asked, repr(_ENVIRONMENT), _CONFIGURE, _COMPILE)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def ensure(cache: Path, kernel: str, programs: Sequence[str], install: Install, processors: int) -> Kernel:
    """The kernel for `programs`, from `cache` or built now. Needs root; a build needs 2 GiB beside `cache`.

    kernel: one of KERNELS. install: puts a minimal Debian with packages into a new directory. processors: how many
    compile at once. Raises Refused for an unknown program, or Failed.
    """
    known = manifest()
    asked = wanted(programs, kernel=kernel, known=known)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kernel.", dir=cache) as work:
        tree = Path(work) / "tree"
        install(tree, (known.source, *known.compiler))
        place = cache / digest(_versions(tree), asked)
        if not (place / "release").is_file():
            left_out = missing(asked, configure(tree, known.source, asked))
            if left_out:
                raise Failed(
                    f"the kernel's source does not take the options {', '.join(left_out)}",
                    hint=f"correct {FOLDER.name}: an option that they depend on is off, or has another name",
                )
            _run(tree, _COMPILE, str(processors))
            _keep(tree / _RESULT, place)
    release = (place / "release").read_text().strip()
    return Kernel(place / "image", place / "uncompressed", place / "config", release)


def configure(tree: Path, source: str, asked: str) -> str:
    """The complete configuration that the package `source`, installed in `tree`, makes of the options asked for."""
    (tree / _WANTED).write_text(asked)
    _run(tree, _CONFIGURE, source)
    return (tree / _RESULT / "config").read_text()


def place_in(tree: Path, kernel: Kernel) -> None:
    """Put a kernel and its configuration into the /boot of an image's tree."""
    boot = tree / "boot"
    boot.mkdir(exist_ok=True)
    shutil.copyfile(kernel.image, boot / f"vmlinuz-{kernel.release}")
    shutil.copyfile(kernel.uncompressed, boot / f"vmlinux-{kernel.release}")
    shutil.copyfile(kernel.config, boot / f"config-{kernel.release}")


def _versions(tree: Path) -> str:
    form = "${Package}=${Version}\n"
    return command.run(
        ["chroot", tree, "dpkg-query", "--show", f"--showformat={form}"], timeout=60, env={"LC_ALL": "C"}
    ).decode()


def _run(tree: Path, script: str, word: str) -> None:
    try:
        command.run(["chroot", tree, "sh", "-c", script, "sh", word], timeout=_BUILD_TIME, env=_ENVIRONMENT)
    except command.CommandFailed as error:
        raise Failed(f"the kernel was not built: {error}", hint="is there room for 2 GiB?") from error


def _keep(result: Path, place: Path) -> None:
    """Move a result into the cache at once, so that a cache never has half a kernel."""
    half = Path(tempfile.mkdtemp(prefix=".half.", dir=place.parent))
    for name in ("image", "uncompressed", "config", "release"):
        shutil.copyfile(result / name, half / name)
    half.chmod(0o755)
    shutil.rmtree(place, ignore_errors=True)
    half.rename(place)

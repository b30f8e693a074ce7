"""Image recipes: from a folder of data to a bootable VM disk image (mmdebstrap, then `disk_layout`).

A recipe is `slicemgr/images/NAME/recipe.toml`; `files/` beside it is copied over the tree, hooks are run on it.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import tomllib
import typing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from slicemgr.config import PACKAGE, parse_size
from slicemgr.drivers import command, disk_layout
from slicemgr.errors import Code, Failed, Refused, invalid

Progress = Callable[[str, int | None], None]

IMAGES = PACKAGE / "images"
_FALLBACK = {"Debian": "http://deb.debian.org/debian", "Debian-Security": "http://deb.debian.org/debian-security"}
_BUILD_TIME = 1800.0  # seconds for all packages, on a slow network
_CONVERT_TIME = 900.0
# The host's settings for reaching a mirror; the rest of its apt configuration is its own affair.
_APT_OPTION = re.compile(r'Acquire::(?:https?::|Check-|Retries|ForceIPv|Max-FutureTime)[\w:./-]* "[^"]+";')
_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe says. size: bytes that a guest sees; the file is much smaller.

    exclude, keep: dpkg path filters for this disk. hooks: scripts beside the recipe, run by sh with the tree as $1.
    root: how the root file system is made; `ext4` is the one there is.
    """

    suite: str
    architecture: str
    packages: tuple[str, ...]
    size: int
    description: str = ""
    components: tuple[str, ...] = ("main",)
    root: str = "ext4"
    kernel_options: str = "console=ttyS0"
    exclude: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


def names() -> list[str]:
    """The recipes that come with the program."""
    return sorted(path.parent.name for path in IMAGES.glob("*/recipe.toml"))


def directory(name: str) -> Path:
    """The folder of the recipe called `name`. Refused if there is none."""
    if name not in names():
        raise Refused(
            Code.NOT_FOUND, f"there is no recipe called {name!r}", hint=f"known: {', '.join(names())}", field="recipe"
        )
    return IMAGES / name


def load(recipe_dir: Path) -> Recipe:
    """Read `recipe.toml`. Refused, with the key's name, if it is missing, unknown or wrong."""
    try:
        raw = tomllib.loads((recipe_dir / "recipe.toml").read_text())
    except OSError as error:
        raise invalid("recipe", f"{recipe_dir} has no readable recipe.toml: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid("recipe", f"{recipe_dir}/recipe.toml is not TOML: {error}") from error
    known = typing.get_type_hints(Recipe)
    needed = {one.name for one in fields(Recipe) if one.default is MISSING}
    for name in sorted(set(raw) ^ needed):
        if name not in known:
            raise invalid(f"recipe.{name}", "unknown key", f"known: {', '.join(sorted(known))}")
        if name not in raw and name in needed:
            raise invalid(f"recipe.{name}", "is missing")
    values = {name: _convert(name, known[name], value) for name, value in raw.items()}
    recipe = Recipe(**typing.cast("dict[str, typing.Any]", values))
    for package in recipe.packages:
        if not _PACKAGE_NAME.fullmatch(package):
            raise invalid("recipe.packages", f"{package!r} is not the name of a package")
    if recipe.root != "ext4":
        raise invalid("recipe.root", f"{recipe.root!r} is unknown", "ext4")
    return recipe


def _convert(name: str, kind: object, value: object) -> object:
    if name == "size" and isinstance(value, str | int):
        return parse_size(value, "recipe.size")
    if kind is str and isinstance(value, str):
        return value
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise invalid(f"recipe.{name}", f"{value!r} has the wrong type")


def build(recipe_dir: Path, output: Path, progress: Progress) -> None:
    """Make the qcow2 disk image `output` from the recipe. Needs root, about 2 GiB beside `output`, and a mirror.

    progress(phase, percent or None). `output` appears complete or not at all. Raises Refused, Failed.
    """
    recipe = load(recipe_dir)
    if os.geteuid() != 0:
        raise Refused(Code.DENIED, "building an image needs root", hint="run it with sudo")
    if not output.parent.is_dir():
        raise invalid("output", f"{output.parent} is not a directory")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent)))
        tree, raw, packed = work / "tree", work / "disk.raw", work / "disk.qcow2"
        try:
            progress("installing packages", None)
            sources, options = host_sources(recipe), host_apt_options()
            command.run(bootstrap_argv(recipe, recipe_dir, tree, sources, options), timeout=_BUILD_TIME)
            progress("making the disk", None)
            disk_layout.assemble(tree, raw, recipe.size, recipe.kernel_options)
            progress("packing the disk", None)
            command.run(pack_argv(raw, packed), timeout=_CONVERT_TIME)
        except command.CommandFailed as error:
            raise Failed(
                f"the image was not built: {error}", hint="is the mirror reachable, and is there room?"
            ) from error
        packed.chmod(0o644)
        packed.replace(output)


def pack_argv(raw: Path, packed: Path) -> list[str]:
    """qemu-img's words for a compressed qcow2; zstd packs and unpacks several times faster than zlib."""
    return [
        "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd",
        "-m", "8", "-W", str(raw), str(packed),
    ]  # fmt: skip


def bootstrap_argv(
    recipe: Recipe, recipe_dir: Path, tree: Path, sources: Sequence[str], apt_options: Sequence[str]
) -> list[str]:
    """mmdebstrap's words for the recipe's tree."""
    words = [
        "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
        f"--architectures={recipe.architecture}",
        f"--include={','.join(recipe.packages)}",
        "--dpkgopt=force-unsafe-io",
    ]  # fmt: skip
    words += [f"--dpkgopt=path-exclude={path}" for path in recipe.exclude]
    words += [f"--dpkgopt=path-include={path}" for path in recipe.keep]
    words += [f"--aptopt={option}" for option in apt_options]
    if (recipe_dir / "files").is_dir():
        source = shlex.quote(str(recipe_dir / "files"))
        words.append(f'--customize-hook=cp -R --no-preserve=ownership {source}/. "$1"')
    words += [f'--customize-hook=sh {shlex.quote(str(recipe_dir / hook))} "$1"' for hook in recipe.hooks]
    return [*words, recipe.suite, str(tree), *sources]


def host_sources(recipe: Recipe) -> list[str]:
    """Lines for sources.list: the recipe's suite on the mirrors that the host's own apt uses for Debian."""
    form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    try:
        told = command.run(
            ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], timeout=60, env={"LC_ALL": "C"}
        )
    except command.CommandFailed:
        told = b""  # not a Debian host: the public mirrors
    return sources_on(mirrors(told.decode(errors="replace")), recipe.suite, recipe.components)


def mirrors(index_targets: str) -> dict[str, str]:
    """Archive label → address, from `apt-get indextargets`; other vendors' repositories do not count.

    Before the first `apt-get update` apt knows no origin: an address that ends like Debian's archives is then taken,
    and its signature is checked by mmdebstrap against Debian's keyring as for any other.
    """
    found = dict(_FALLBACK)
    seen = set()
    for line in index_targets.splitlines():
        origin, _, rest = line.partition("|")
        label, _, uri = rest.partition("|")
        uri = uri.strip().rstrip("/")
        if not uri.startswith(("http://", "https://")):
            continue
        if origin.startswith("$("):
            label = {"debian": "Debian", "debian-security": "Debian-Security"}.get(uri.rpartition("/")[2], "")
        elif origin != "Debian":
            continue
        if label in found and label not in seen:
            seen.add(label)
            found[label] = uri
    return found


def sources_on(mirror: dict[str, str], suite: str, components: Sequence[str]) -> list[str]:
    """One-line sources for a suite with its updates and security fixes."""
    parts = " ".join(components)
    return [
        f"deb {mirror['Debian']} {suite} {parts}",
        f"deb {mirror['Debian']} {suite}-updates {parts}",
        f"deb {mirror['Debian-Security']} {suite}-security {parts}",
    ]


def host_apt_options() -> list[str]:
    """How the host's apt reaches its mirrors: proxies, certificates, retries, date checks."""
    try:
        told = command.run(["apt-config", "dump", "--format", '%F "%v";%n', "Acquire"], timeout=60)
    except command.CommandFailed:
        return []
    return apt_options(told.decode(errors="replace"))


def apt_options(dump: str) -> list[str]:
    """The lines of `apt-config dump` that say how to reach a mirror."""
    return [line for line in dump.splitlines() if _APT_OPTION.fullmatch(line)]

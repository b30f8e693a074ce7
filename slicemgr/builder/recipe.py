"""Image recipes: build a bootable VM disk image from a folder (by mmdebstrap, then `disk_assembly`).

A recipe is `images/NAME/recipe.toml`. Its folder `files/` is copied over the tree, and its hooks run on the tree. Parts
are folders of the same form with a `part.toml`; several recipes can include the same part. An image with a thin kernel
(`guest_kernel`) has no boot loader: the node boots its kernel directly.
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
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

from slicemgr.builder import disk_assembly, guest_kernel
from slicemgr.config import PACKAGE, parse_size
from slicemgr.drivers import command
from slicemgr.drivers.importer.disk_layout import FILESYSTEMS, TABLES, Layout, lay_out
from slicemgr.errors import Code, Failed, Refused, invalid

Progress = Callable[[str, int | None], None]

IMAGES = PACKAGE / "images"
_FALLBACK = {"Debian": "http://deb.debian.org/debian", "Debian-Security": "http://deb.debian.org/debian-security"}
_BUILD_TIME = 1800.0  # seconds for all packages on a slow network
_CONVERT_TIME = 900.0
# The host's apt settings that are needed to reach a mirror; all other settings are ignored.
_APT_OPTION = re.compile(r'Acquire::(?:https?::|Check-|Retries|ForceIPv|Max-FutureTime)[\w:./-]* "[^"]+";')
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")  # a suite, an architecture or a component, but not an option
_KERNEL_OPTIONS = re.compile(r"[A-Za-z0-9 _.,:=/+@-]*")  # no characters that GRUB's configuration would interpret
_BOOT_PACKAGES = ("linux-image-", "grub-", "shim-")
_PACKAGE_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of a recipe. size: of the guest's disk in bytes; the image file is much smaller.

    include: parts, as names of folders beside the recipe's. The recipe's lists are appended to theirs, and its other
    values replace theirs. table: `gpt` or `dos`. root: the file system, `ext4` or `btrfs`. boot: bytes of a separate
    ext4 /boot, or 0. uefi: boots on UEFI too; every disk boots on a BIOS.
    kernel: "" for that of a package, or one of guest_kernel.KERNELS: built from source, without a boot loader.
    kernel_programs: programs of `kernel-thin/kernel.toml` whose options a thin kernel has too.
    exclude, keep: dpkg path filters for this disk. hooks: scripts beside the recipe, which sh runs with the tree as $1.
    folders: of the parts and of the recipe.
    """

    suite: str
    architecture: str
    packages: tuple[str, ...]
    size: int
    description: str = ""
    components: tuple[str, ...] = ("main",)
    include: tuple[str, ...] = ()
    table: str = "gpt"
    root: str = "ext4"
    boot: int = 0
    uefi: bool = False
    kernel_options: str = "console=ttyS0"
    kernel: str = ""
    kernel_programs: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def layout(self) -> Layout:
        """The layout of the disk. Raises Refused if the disk is too small for it."""
        return lay_out(self.size, table=self.table, filesystem=self.root, boot=self.boot, uefi=self.uefi)


_KINDS = {name: kind for name, kind in typing.get_type_hints(Recipe).items() if name != "folders"}
_NEEDED = {one.name for one in fields(Recipe) if one.default is MISSING}


def names() -> list[str]:
    """The names of the recipes that slicemgr contains."""
    return sorted(path.parent.name for path in IMAGES.glob("*/recipe.toml"))


def directory(name: str) -> Path:
    """The folder of the recipe `name`. Raises Refused if there is none."""
    if name not in names():
        raise Refused(
            Code.NOT_FOUND, f"there is no recipe called {name!r}", hint=f"known: {', '.join(names())}", field="recipe"
        )
    return IMAGES / name


def load(recipe_dir: Path) -> Recipe:
    """Read `recipe.toml` and its parts. Raises Refused, which names the key that is missing, unknown or wrong."""
    own = _read(recipe_dir / "recipe.toml")
    values: dict[str, typing.Any] = {}
    folders = [recipe_dir.parent / part for part in own.get("include", ())]
    for said in [*(_read(folder / "part.toml") for folder in folders), own]:
        for name, value in said.items():
            values[name] = values.get(name, ()) + value if isinstance(value, tuple) else value
    for name in sorted(_NEEDED - values.keys()):
        raise invalid(f"recipe.{name}", "is missing")
    recipe = Recipe(**values, folders=(*folders, recipe_dir))
    _check(recipe)
    return recipe


def with_kernel(recipe: Recipe, kernel: str, programs: Sequence[str]) -> Recipe:
    """The recipe with another kernel, if `kernel` names one, and with the options of more programs.

    The packages with Debian's kernel and boot loader are left out of an image with a thin kernel. Raises Refused.
    """
    kernel, programs = kernel or recipe.kernel, (*recipe.kernel_programs, *programs)
    if kernel:
        packages = tuple(name for name in recipe.packages if not name.startswith(_BOOT_PACKAGES))
        recipe = replace(recipe, packages=packages, uefi=False)
    chosen = replace(recipe, kernel=kernel, kernel_programs=tuple(sorted(set(programs))))
    _check(chosen)
    return chosen


def _read(file: Path) -> dict[str, typing.Any]:
    """The keys of a recipe or a part, with values of the right types. Raises Refused."""
    try:
        raw = tomllib.loads(file.read_text())
    except OSError as error:
        raise invalid("recipe", f"{file.parent} has no readable {file.name}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid("recipe", f"{file} is not TOML: {error}") from error
    known = _KINDS.keys() - ({"include"} if file.name == "part.toml" else set())
    for name in sorted(raw.keys() - known):
        raise invalid(f"recipe.{name}", f"unknown key in {file}", f"known: {', '.join(sorted(known))}")
    values = {name: _convert(name, _KINDS[name], value) for name, value in raw.items()}
    if "hooks" in values:
        values["hooks"] = tuple(str(file.parent / hook) for hook in raw["hooks"])
    return values


def _convert(name: str, kind: object, value: object) -> object:
    if kind is int and isinstance(value, str | int) and not isinstance(value, bool):
        return parse_size(value, f"recipe.{name}")
    if kind in (str, bool) and type(value) is kind:
        return value
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise invalid(f"recipe.{name}", f"{value!r} has the wrong type")


def _check(recipe: Recipe) -> None:
    for package in recipe.packages:
        if not _PACKAGE_NAME.fullmatch(package):
            raise invalid("recipe.packages", f"{package!r} is not the name of a package")
    words = {"suite": (recipe.suite,), "architecture": (recipe.architecture,), "components": recipe.components}
    for name, said in words.items():
        for word in said:
            if not _WORD.fullmatch(word):
                raise invalid(f"recipe.{name}", f"{word!r} is not a word of letters, digits, . and -")
    if not _KERNEL_OPTIONS.fullmatch(recipe.kernel_options):
        raise invalid("recipe.kernel_options", f"{recipe.kernel_options!r}", "letters, digits, spaces and _.,:=/+@-")
    if recipe.table not in TABLES:
        raise invalid("recipe.table", f"{recipe.table!r} is unknown", " or ".join(TABLES))
    if recipe.root not in FILESYSTEMS:
        raise invalid("recipe.root", f"{recipe.root!r} is unknown", " or ".join(FILESYSTEMS))
    if recipe.uefi and (recipe.table, recipe.architecture) != ("gpt", "amd64"):
        raise invalid("recipe.uefi", "needs an EFI partition and amd64's boot loader", 'table = "gpt" and amd64')
    if recipe.kernel:
        _check_kernel(recipe)
    elif recipe.kernel_programs:
        raise invalid("recipe.kernel_programs", "are for thin kernels only", 'kernel = "thin"')


def _check_kernel(recipe: Recipe) -> None:
    if recipe.kernel not in guest_kernel.KERNELS:
        raise invalid("recipe.kernel", f"{recipe.kernel!r} is unknown", " or ".join(guest_kernel.KERNELS))
    if (recipe.architecture, recipe.root, recipe.boot) != ("amd64", "ext4", 0):
        raise invalid("recipe.kernel", "a thin kernel boots one root of ext4 on amd64", 'root = "ext4" and no boot')
    guest_kernel.wanted(recipe.kernel_programs)


def build(recipe: Recipe, output: Path, progress: Progress, *, cache: Path, security: bool = True) -> None:
    """Build the qcow2 disk image `output` from a recipe. Needs root, about 2 GiB beside `output`, and a mirror.

    cache: the directory where thin kernels are kept. security: False omits Debian's security fixes, for a mirror
    without them. progress: called with a phase, and a percentage or None. `output` is created atomically. Raises
    Refused or Failed.
    """
    layout = recipe.layout
    if os.geteuid() != 0:
        raise Refused(Code.DENIED, "building an image needs root", hint="run it with sudo")
    if not output.parent.is_dir():
        raise invalid("output", f"{output.parent} is not a directory")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent)))
        tree, raw, packed = work / "tree", work / "disk.raw", work / "disk.qcow2"
        try:
            progress("installing packages", None)
            sources, options = host_sources(recipe, security=security), host_apt_options()
            # A mount namespace of its own removes the tree's mounts, even if mmdebstrap is killed.
            argv = ["unshare", "--mount", *bootstrap_argv(recipe, tree, sources, options)]
            command.run(argv, timeout=_BUILD_TIME)
            if recipe.kernel:
                progress("building the kernel", None)
                kernel = kernel_of(recipe, cache, sources, options, os.cpu_count() or 1)
                guest_kernel.place_in(tree, kernel)
            progress("making the disk", None)
            disk_assembly.assemble(tree, raw, layout, None if recipe.kernel else recipe.kernel_options)
            progress("packing the disk", None)
            command.run(pack_argv(raw, packed), timeout=_CONVERT_TIME)
        except command.CommandFailed as error:
            raise Failed(
                f"the image was not built: {error}", hint="is the mirror reachable, and is there room?"
            ) from error
        packed.chmod(0o644)
        packed.replace(output)


def kernel_of(
    recipe: Recipe, cache: Path, sources: Sequence[str], options: Sequence[str], processors: int
) -> guest_kernel.Kernel:
    """The recipe's thin kernel; a compilation in a Debian of its own if `cache` has it not. Needs root.

    sources: lines of sources.list. options: of apt. processors: how many compile at once. Raises CommandFailed or
    Failed.
    """

    def install(place: Path, packages: Sequence[str]) -> None:
        bare = Recipe(recipe.suite, recipe.architecture, tuple(packages), 0)
        command.run(["unshare", "--mount", *bootstrap_argv(bare, place, sources, options)], timeout=_BUILD_TIME)

    return guest_kernel.ensure(cache, recipe.kernel, recipe.kernel_programs, install, processors)


def pack_argv(raw: Path, packed: Path) -> list[str]:
    """The qemu-img command line for a compressed qcow2 image; zstd is several times faster than zlib."""
    return [
        "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd",
        "-m", "8", "-W", str(raw), str(packed),
    ]  # fmt: skip


def bootstrap_argv(recipe: Recipe, tree: Path, sources: Sequence[str], apt_options: Sequence[str]) -> list[str]:
    """The mmdebstrap command line for the recipe's tree. All files are copied before the first hook runs."""
    words = [
        "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
        f"--architectures={recipe.architecture}",
        f"--include={','.join(recipe.packages)}",
        "--dpkgopt=force-unsafe-io",
    ]  # fmt: skip
    words += [f"--dpkgopt=path-exclude={path}" for path in recipe.exclude]
    words += [f"--dpkgopt=path-include={path}" for path in recipe.keep]
    words += [f"--aptopt={option}" for option in apt_options]
    for files in [folder / "files" for folder in recipe.folders]:
        if files.is_dir():
            words.append(f'--customize-hook=cp -R --no-preserve=ownership {shlex.quote(str(files))}/. "$1"')
    words += [f'--customize-hook=sh {shlex.quote(hook)} "$1"' for hook in recipe.hooks]
    return [*words, recipe.suite, str(tree), *sources]


def host_sources(recipe: Recipe, *, security: bool = True) -> list[str]:
    """The lines of sources.list: the recipe's suite on the mirrors that the host's apt uses for Debian."""
    form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    try:
        output = command.run(
            ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], timeout=60, env={"LC_ALL": "C"}
        )
    except command.CommandFailed:
        output = b""  # not a Debian host: the public mirrors are used
    return sources_on(mirrors(output.decode(errors="replace")), recipe.suite, recipe.components, security=security)


def mirrors(index_targets: str) -> dict[str, str]:
    """Archive label → address, from `apt-get indextargets`, without the repositories of other vendors.

    Before the first `apt-get update`, apt does not have the origins: an address that ends like one of Debian's archives
    is then used, and mmdebstrap checks its signature against Debian's keyring as for any other.
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


def sources_on(mirror: dict[str, str], suite: str, components: Sequence[str], *, security: bool = True) -> list[str]:
    """One-line sources for a suite with its updates and, if `security`, its security fixes."""
    parts = " ".join(components)
    lines = [
        f"deb {mirror['Debian']} {suite} {parts}",
        f"deb {mirror['Debian']} {suite}-updates {parts}",
    ]
    return [*lines, f"deb {mirror['Debian-Security']} {suite}-security {parts}"] if security else lines


def host_apt_options() -> list[str]:
    """The options by which the host's apt reaches its mirrors: proxies, certificates, retries, date checks."""
    try:
        output = command.run(["apt-config", "dump", "--format", '%F "%v";%n', "Acquire"], timeout=60)
    except command.CommandFailed:
        return []
    return apt_options(output.decode(errors="replace"))


def apt_options(dump: str) -> list[str]:
    """The lines of `apt-config dump` that are needed to reach a mirror."""
    return [line for line in dump.splitlines() if _APT_OPTION.fullmatch(line)]

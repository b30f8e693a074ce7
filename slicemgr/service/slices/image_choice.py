"""The image of a slice: find it, and check that slivers of the slice can be made from it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Boot, BootFacts, ImageState, Init, Machine, SliceSpec, SliverType
from slicemgr.policy.image_needs import Needs, needs
from slicemgr.store import tables as t

_I = t.images.c
_WANTED: sa.BindParameter[str] = sa.bindparam("wanted")
_USABLE = sa.select(_I.sha256, _I.name, _I.state, _I.arch, _I.boot, _I.systemd).where(
    sa.or_(_I.project.is_(None), _I.project == sa.bindparam("project")),
    sa.or_(_I.name == _WANTED, _I.sha256 == _WANTED),
)  # made once: to make it takes longer than to execute it


def find(c: Connection, wanted: str, project: str) -> Row[*tuple[Any, ...]]:
    """An image for all projects, or the project's own."""
    row = c.execute(_USABLE, {"project": project, "wanted": wanted}).first()
    if row is None:
        hint = "list them with `slicectl image list`"
        raise Refused(Code.INVALID, f"there is no image {wanted[:80]!r}", hint=hint, field="image")
    if row.state != ImageState.READY:
        doing = "is being deleted" if row.state == ImageState.DELETING else "is still being imported"
        doing = "has no files on the node; import it again" if row.state == ImageState.MISSING else doing
        raise Refused(Code.CONFLICT, f"image {row.name} {doing}", hint="`slicectl image list`", field="image")
    return row


def check(image: Row[*tuple[Any, ...]], spec: SliceSpec) -> Boot:
    """How a sliver of the image boots. Refused if the image does not support the specification."""
    if image.arch not in ("", "x86_64", "i686"):
        raise invalid("image", f"{image.name} is for {image.arch}", "use an image for x86_64 or i686")
    if spec.type is SliverType.LXC:
        if not image.arch:
            raise invalid("type", f"image {image.name} has no Linux system for containers", "kvm")
        if spec.init is Init.SYSTEMD:
            _check_systemd(image)
        return Boot.DIRECT
    if not image.boot:
        raise invalid("image", f"{image.name} was imported by a version without support for kvm", "import it again")
    facts = BootFacts(**image.boot)
    boot = _boot(facts, spec)
    if boot is not None:
        _check_growth(image, facts, spec)
        return boot
    if facts.choose(Boot.LOADER) is None:
        raise invalid(
            "image", f"{image.name} has neither a boot loader nor a kernel", "use an image with one, or the type lxc"
        )
    if spec.machine is Machine.THIN:
        raise invalid("machine", f"image {image.name} has no kernel for a thin machine", "use the machine standard")
    able = [one.value for one in Boot if facts.choose(one)]
    raise invalid(
        "boot", f"image {image.name} does not support the boot method {spec.boot}", f"supported: {', '.join(able)}"
    )


def needed(image: Row[*tuple[Any, ...]], spec: SliceSpec) -> Needs:
    """The files of the image from which the slivers are made."""
    boot = _boot(BootFacts(**image.boot), spec) if image.boot else None
    return needs(spec.type, boot or spec.boot)


def _boot(facts: BootFacts, spec: SliceSpec) -> Boot | None:
    """How slivers of an image with `facts` boot; None if they cannot."""
    return facts.choose(Boot.DIRECT if spec.machine is Machine.THIN else spec.boot)


def _check_growth(image: Row[*tuple[Any, ...]], facts: BootFacts, spec: SliceSpec) -> None:
    """Refused if a machine of the image cannot have the device by which it gets memory while it runs."""
    if spec.limits.memory_max is None:
        return
    if spec.machine is Machine.THIN and facts.mmio:
        message = f"a thin machine of image {image.name} has no bus for the device"
        raise invalid("memory_max", message, "use the machine standard, or omit this field")
    if image.arch == "i686":
        message = f"the kernel of image {image.name} has 32 bits, and no driver virtio_mem"
        raise invalid("memory_max", message, "use an image for x86_64, or omit this field")


def _check_systemd(image: Row[*tuple[Any, ...]]) -> None:
    if image.systemd is None:
        message = f"it is not known whether image {image.name} has systemd: an earlier version imported it"
        raise invalid("init", message, "restart the agent of the node, which then examines the image")
    if not image.systemd:
        raise invalid("init", f"image {image.name} has no systemd", "use minimal, or an image with systemd")

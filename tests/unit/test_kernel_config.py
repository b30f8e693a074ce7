"""The configuration of an image's kernel: from a hostile image, through the rows, to pages, REST and slicectl."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_service import Service
from browsers import Browser
from tenants import LAB_SHA, Tenants

from slicemgr import names
from slicemgr.agent import images
from slicemgr.agent.journal import Journal
from slicemgr.model import ImageState
from slicemgr.policy import kernel_config
from slicemgr.store import outbox, pending
from slicemgr.store import tables as t

SHA = "ef" * 32
TEXT = "#\n# Linux/x86 6.1\n#\nCONFIG_VIRTIO_MMIO=y\n# CONFIG_PCI is not set\n"
HOSTILE = b"<script>alert(1)</script>\x00\x1b[2J\xff\r\nCONFIG_A=y\n"
KERNEL = {"bios": False, "uefi": False, "kernel": "/boot/vmlinuz-6.1-thin", "initrd": "", "root": "root=/dev/vda1"}


@pytest.mark.parametrize(
    ("kernel", "path"),
    [
        ("/boot/vmlinuz-6.1-thin", "boot/config-6.1-thin"),
        ("/boot/vmlinux-6.1-thin", "boot/config-6.1-thin"),
        ("/boot/vmlinuz", ""),
        ("/vmlinuz-6.1", ""),
        ("", ""),
    ],
)
def test_where_a_configuration_is(kernel: str, path: str) -> None:
    assert kernel_config.path(kernel) == path


def test_only_printable_text_of_a_bounded_size_is_shown() -> None:
    assert kernel_config.shown(TEXT) == TEXT == kernel_config.shown(TEXT.encode())
    assert kernel_config.shown(HOSTILE) == "<script>alert(1)</script>??[2J?\nCONFIG_A=y\n"
    assert kernel_config.shown("x" * kernel_config.LARGEST) and not kernel_config.shown(
        "x" * (kernel_config.LARGEST + 1)
    )


def test_an_image_leads_nowhere_outside_of_its_files(tmp_path: Path) -> None:
    boot = tmp_path / "base" / "boot"
    boot.mkdir(parents=True)
    (boot / "config-1").write_text(TEXT)
    (tmp_path / "secret").write_text("secret")
    (boot / "config-2").symlink_to("../../secret")
    (boot / "config-3").write_bytes(b"#" * (kernel_config.LARGEST + 1))
    (boot / "config-4").mkdir()
    found = [images.config_of_kernel(tmp_path / "base", f"/boot/vmlinuz-{number}") for number in range(1, 6)]
    assert found[0] == TEXT and found[1] == "" and found[3:] == ["", ""]
    assert len(found[2]) <= kernel_config.LARGEST


def test_images_of_an_earlier_version_get_theirs(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        service.add_image(SHA, "thin", boot=KERNEL)
        base = names.base_dir(service.config.node.pool, SHA)
        (base / "boot").mkdir(parents=True)
        (base / "boot/config-6.1-thin").write_text(TEXT)

        def noted() -> str | None:
            with Journal(service.store, "node1") as journal:
                images.note_findings(service.config, service.store, journal)
                journal.flush()
            with service.store.read() as c:
                assert c.scalar(t.images.select().with_only_columns(t.images.c.state)) == "ready"
                return c.scalar(t.kernel_configs.select().with_only_columns(t.kernel_configs.c.config))

        assert noted() == TEXT
        (base / "boot/config-6.1-thin").write_text("other")
        assert noted() == TEXT, "it is read once"


def test_pages_and_rest_serve_it_as_text_to_those_who_see_the_image(tenants: Tenants) -> None:
    tenants.add_image(SHA, "thin", boot=KERNEL)
    tenants.add_image("fe" * 32, "usual", boot=KERNEL)
    hostile = kernel_config.shown(HOSTILE)
    tenants.record(pending.ImageSeen(SHA, ImageState.READY, kernel_config=hostile))
    bob = Browser(tenants, "bob")
    assert 'href="/images/thin/kernel-config"' in bob.get("/images/thin").text
    assert "kernel-config" not in bob.get("/images/usual").text
    rest = tenants.client("bob")
    assert (rest.get("/api/v1/images/thin").json or {})["kernel_config"] == len(hostile)
    for answer in (bob.get("/images/thin/kernel-config"), rest.get("/api/v1/images/thin/kernel-config")):
        assert (answer.status_code, answer.text) == (200, hostile)
        assert answer.mimetype == "text/plain" and answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert (rest.get("/api/v1/images/usual").json or {})["kernel_config"] == 0
    assert rest.get("/api/v1/images/usual/kernel-config").status_code == 404
    with tenants.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == SHA).values(project="rival"))
    assert rest.get("/api/v1/images/thin/kernel-config").status_code == 404
    assert bob.get("/images/thin/kernel-config").status_code == 404
    assert tenants.client("carol").get("/api/v1/images/thin/kernel-config").text == hostile, "of her project"


def test_a_later_finding_replaces_it_and_it_goes_with_the_image(tenants: Tenants) -> None:
    tenants.add_image(SHA, "thin", boot=KERNEL)
    for text in (TEXT, "CONFIG_B=y\n"):
        tenants.record(pending.ImageSeen(SHA, ImageState.READY, kernel_config=text))
    tenants.record(pending.ImageSeen(SHA, ImageState.READY))
    tenants.record(pending.ImageSeen("00" * 32, ImageState.READY, kernel_config=TEXT))
    with tenants.store.read() as c:
        found = {row.image: (row.config, row.size) for row in c.execute(t.kernel_configs.select())}
    assert found == {LAB_SHA: ("CONFIG_X=y\n", 11), SHA: ("CONFIG_B=y\n", 11)}
    tenants.record(pending.ImageGone(SHA))
    assert tenants.count("kernel_configs") == 1


def test_a_report_has_no_large_one() -> None:
    small, large = (
        outbox._body(pending.ImageSeen(SHA, ImageState.READY, kernel_config="x" * size)) for size in (1000, 200_000)
    )
    assert len(small["kernel_config"]) == 1000 and "kernel_config" not in large

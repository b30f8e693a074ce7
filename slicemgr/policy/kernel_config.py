"""The configuration of an image's kernel, as text that is shown. It comes from images, and so from tenants. Pure."""

from __future__ import annotations

import re

LARGEST = 512 << 10  # bytes

_UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")


def path(kernel: str) -> str:
    """The path of the configuration of a kernel in /boot, relative to the root; "" for one without a release."""
    match = re.fullmatch(r"/(boot)/(?:vmlinuz|vmlinux|bzImage|kernel)(-.+)", kernel)
    return f"{match[1]}/config{match[2]}" if match else ""


def shown(content: bytes | str) -> str:
    """No more than LARGEST characters, of which all are printable ASCII or ends of lines; "" for a longer one.

    A configuration has no others: Kconfig writes names, numbers and quoted text.
    """
    text = content.decode("latin-1") if isinstance(content, bytes) else content
    return "" if len(text) > LARGEST else _UNPRINTABLE.sub("?", text.replace("\t", " ").replace("\r\n", "\n"))

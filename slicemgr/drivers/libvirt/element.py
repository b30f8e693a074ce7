"""Create elements of libvirt's XML."""

from __future__ import annotations

from xml.etree import ElementTree as ET


def element(parent: ET.Element, tag: str, text: str | int | None = None, **attributes: str | int) -> ET.Element:
    """Append a new child to `parent` and return it."""
    child = ET.SubElement(parent, tag, {name: str(value) for name, value in attributes.items()})
    child.text = None if text is None else str(text)
    return child

"""The start of a domain while libvirtd parses its schema for the first time, which cannot be brought about."""

from __future__ import annotations

import libvirt
import pytest

from slicemgr.drivers.libvirt.hypervisor import start

RACE = "internal error: Unable to parse RNG domain.rng: Error type 'unsignedInt' is not exported by type library"


class Libvirtd:
    """Refuses the first starts with these errors."""

    def __init__(self, *errors: str) -> None:
        self._errors = list(errors)
        self.asked = 0

    def createXML(self, xml: str, flags: int) -> str:
        assert flags == libvirt.VIR_DOMAIN_START_VALIDATE
        self.asked += 1
        if self._errors:
            error = libvirt.libvirtError("")
            error.err = (1, 20, self._errors.pop(0), 2, None, None, None, 0, 0)
            error.args = (error.err[2],)
            raise error
        return xml


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_start_whose_schema_was_not_parsed_is_tried_again(count: int) -> None:
    libvirtd = Libvirtd(*[RACE] * count)
    assert start(libvirtd, "<domain/>") == "<domain/>" and libvirtd.asked == count + 1


@pytest.mark.parametrize(("errors", "asked"), [([RACE] * 3, 3), (["no network"], 1), ([RACE, "no network"], 2)])
def test_another_error_is_the_reason(errors: list[str], asked: int) -> None:
    libvirtd = Libvirtd(*errors)
    with pytest.raises(libvirt.libvirtError, match=errors[-1].split(":")[0]):
        start(libvirtd, "<domain/>")
    assert libvirtd.asked == asked

"""The removal of links, in a network namespace of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

BEGIN = """
import json, os, sys
from slicemgr.drivers.network import links
links.remove(json.loads(sys.argv[1]))
print(json.dumps(sorted(os.listdir("/sys/class/net"))))
"""
PAIRS = "for i in 0 1 2; do ip link add a$i type veth peer name b$i; done"
MAKE = f"mount -t sysfs none /sys && {PAIRS}"
OTHERS = ["a2", "b2", "lo"]


def left(*links: str) -> list[str]:
    """The links that exist after the removal of these."""
    words = ["unshare", "--net", "--mount", "sh", "-c", f'{MAKE} && exec "$@"', "sh", sys.executable, "-c", BEGIN]
    found: list[str] = json.loads(subprocess.run([*words, json.dumps(links)], check=True, capture_output=True).stdout)
    return found


@pytest.mark.parametrize("links", [("a0", "a1"), ("a0", "none", "b1", "none"), ("a0", "b0", "a1")])
def test_links_go_with_their_other_ends_and_no_other_does(links: tuple[str, ...]) -> None:
    assert left(*links) == OTHERS


@pytest.mark.parametrize("links", [(), ("none",), ("none", "a" * 15)])
def test_links_that_do_not_exist_are_left_out(links: tuple[str, ...]) -> None:
    assert left(*links) == sorted([*OTHERS, "a0", "a1", "b0", "b1"])

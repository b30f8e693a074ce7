"""Stop the broker of a testbed of boxes while a node reboots, and measure when its reports have arrived.

    tools/bench_outage.py [--seconds 600] [--json FILE]

The slivers of the node must run from its own rows, without the broker. Another node repairs a sliver that ended.
The time is from when the broker listens again until no node has a report left. The exit status is 1 if a sliver does
not run without the broker, if a node has nothing to report then, or if that time is more than 10 seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import boxed_faults
import demo
from boxed_testbed import RECIPE, BoxedTestbed
from nodebox_linux import BoxError, wait_until

from slicemgr import names

SLICE = "outage"
MOST = 10.0  # seconds until the backlog is empty
_RUNS = 180.0  # seconds until a sliver accepts logins
_SENT = 300.0
_WAITED, _REPORTED = "reports that waited", "reported after the broker was back, seconds"
_BUSY = ("n1", "n2")  # where a sliver ended, or its host did


def measure(testbed: BoxedTestbed, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Raises BoxError if a sliver does not run."""
    key = demo.ensure_key()
    words = ("--type", "lxc", "--image", RECIPE, "--node", "n1,n2,n3", "--count", "3", "--ssh-key", f"{key}.pub")
    testbed.centre.slicectl("create", SLICE, *words)
    slivers = {one["node"]: one for one in testbed.ask("show", SLICE)["slivers"]}
    began = time.monotonic()
    boxed_faults.kill(testbed, "rabbitmq")
    say("the broker has ended; n2 reboots")
    reboot(testbed)
    rebooted = time.monotonic()
    ended = names.domain(slivers["n1"]["id"])
    testbed.nodes["n1"].box.run(["virsh", "-c", "lxc:///system", "destroy", ended], check=True)
    runs = {}
    for place in ("n2", "n1"):
        if not wait_until(lambda place=place: logs_in(testbed, slivers[place]["index"]), _RUNS, 1):  # type: ignore[misc]
            raise BoxError(f"the sliver on {place} does not run without the broker")
        runs[place] = round(time.monotonic() - rebooted, 1)
    say(f"logins without the broker: {runs}")
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    waiting = {name: boxed_faults.unsent(node) for name, node in testbed.nodes.items()}
    off = time.monotonic() - began
    boxed_faults.heal(testbed, "rabbitmq")
    back = time.monotonic()
    empty = {}
    for name, node in testbed.nodes.items():
        if not wait_until(lambda node=node: boxed_faults.unsent(node) == 0, _SENT, 0.1):  # type: ignore[misc]
            raise BoxError(f"{name} has not reported {_SENT:g} s after the broker is back")
        empty[name] = round(time.monotonic() - back, 1)
    testbed.centre.slicectl("delete", SLICE)
    return {
        "broker off, seconds": round(off),
        "login after the reboot, seconds": runs["n2"],
        _WAITED: waiting,
        _REPORTED: empty,
    }


def reboot(testbed: BoxedTestbed) -> None:
    """Of n2, as its host does: everything starts again, in the usual order."""
    node = testbed.nodes["n2"]
    node.box.reboot()
    node.start_again()


def logs_in(testbed: BoxedTestbed, index: int) -> bool:
    words = ("ssh", "-i", str(demo.ensure_key()), f"{SLICE}/{index}", "--", "true")
    try:
        testbed.centre.slicectl(*words)
    except subprocess.CalledProcessError:
        return False
    return True


def work(testbed: BoxedTestbed, asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    testbed.import_image()
    found = measure(testbed, asked.seconds, lambda text: print(f"outage: {text}", file=sys.stderr, flush=True))
    found["missed"] = missed(found)
    return found, not found["missed"]


def missed(found: dict[str, Any]) -> list[str]:
    """Which aims a measurement misses, or does not show. Pure."""
    late = {name: took for name, took in found[_REPORTED].items() if took > MOST}
    idle = [name for name in _BUSY if not found[_WAITED].get(name)]
    return [
        *(f"{name} had reported {took:g} s after the broker was back (aim: {MOST:g} s)" for name, took in late.items()),
        *(f"nothing waited on {name}, so its time says nothing" for name in idle),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="for which the broker is off")
    boxed_faults.main("outage", parser, work)


if __name__ == "__main__":
    main()

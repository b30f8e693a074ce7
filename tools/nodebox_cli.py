"""nodebox: private nodes on any root Linux, without touching the host."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nodebox_box import LINKS, Box, Facts, names
from nodebox_linux import BoxError
from nodebox_switch import Facts as SwitchFacts
from nodebox_switch import Switch
from nodebox_switch import names as switches

OWN_FAILURE = 125  # as for `chroot` and `env`: the command was not run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nodebox", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help: str, named: bool = True) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help, description=help)
        if named:
            sub.add_argument("name", metavar="NAME")
        return sub

    make = verb("make", "make a box, or mend one; a healthy box is left as it is")
    make.add_argument("--dir", type=Path, help="where its files go (default /var/tmp/slicemgr-boxes/NAME)")
    make.add_argument("--pool-size", help="of the btrfs pool, a sparse file (default 64G)")
    make.add_argument("--link", choices=LINKS, help="what its uplink leads to (default host)")
    make.add_argument("--no-libvirt", action="store_true", help="without virtlogd and libvirtd")
    make.add_argument("-f", "--format", choices=("text", "json"), default="text")
    enter = verb("enter", "run a command in a box")
    enter.add_argument("--background", metavar="TAG", help="as a daemon: log/TAG.log and pids/TAG.pid in its directory")
    outside = verb("outside", "run a command in the outside namespace of a box")
    for sub in (enter, outside):
        sub.add_argument("command", nargs=argparse.REMAINDER, metavar="[--] COMMAND…")
    libvirtd = verb("libvirtd", "control the libvirtd of a box")
    libvirtd.add_argument("action", choices=("start", "stop", "restart", "kill"))
    verb("reboot", "kill everything in a box and bring it up again; its pool and files survive")
    verb("join", "lay a cable between two boxes").add_argument("other", metavar="OTHER")
    plug = verb("plug", "lay a cable from a box to a switch")
    plug.add_argument("switch", metavar="SWITCH")
    plug.add_argument("--outside", action="store_true", help="from the outside namespace of the box")
    switch = verb("switch", "control a switch, to which boxes are plugged")
    switch.add_argument("action", choices=("make", "show", "destroy"))
    for sub in (verb("list", "every box", named=False), verb("show", "one box")):
        sub.add_argument("-f", "--format", choices=("text", "json"), default="text")
    destroy = verb("destroy", "remove a box and everything of it", named=False)
    which = destroy.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", metavar="NAME")
    which.add_argument("--all", action="store_true", help="remove every box and switch")
    return parser


def _print(facts: Facts | SwitchFacts, style: str) -> None:
    if style == "json":
        print(json.dumps(dataclasses.asdict(facts), indent=1))
        return
    for key, value in dataclasses.asdict(facts).items():
        if value not in ("", None, {}):
            print(f"{key + ':':12}{value}")


def _list(style: str) -> None:
    all_facts = [Box(name).facts() for name in names() if Box(name).exists]
    if style == "json":
        print(json.dumps([dataclasses.asdict(facts) for facts in all_facts], indent=1))
        return
    for facts in all_facts:
        print(f"{facts.name:20} {facts.address or '-':15} {facts.problem or 'healthy':30} {facts.directory}")


def _enter(options: argparse.Namespace) -> None:
    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not argv:
        raise BoxError("a command is missing")
    box = Box(options.name)
    if options.verb == "outside":
        box.enter_outside(argv)
    elif options.background:
        print(box.background(options.background, argv))
    else:
        box.enter(argv)


def _destroy(options: argparse.Namespace) -> None:
    for name in names() if options.all else [options.name]:
        Box(name).destroy()
    for name in switches() if options.all else ():
        Switch(name).destroy()


def _switch(switch: Switch, action: str) -> None:
    if action == "destroy":
        switch.destroy()
    else:
        _print(switch.make() if action == "make" else switch.facts(), "text")


def _run(options: argparse.Namespace) -> None:
    match options.verb:
        case "make":
            facts = Box(options.name).make(
                link=options.link,
                pool_size=options.pool_size,
                with_libvirt=False if options.no_libvirt else None,
                directory=options.dir,
            )
            _print(facts, options.format)
        case "enter" | "outside":
            _enter(options)
        case "libvirtd":
            Box(options.name).libvirtd(options.action)
        case "reboot":
            _print(Box(options.name).reboot(), "text")
        case "join":
            _print(Box(options.name).join(Box(options.other)), "text")
        case "plug":
            print(Box(options.name).plug(Switch(options.switch), outside=options.outside))
        case "switch":
            _switch(Switch(options.name), options.action)
        case "show":
            _print(Box(options.name).facts(), options.format)
        case "list":
            _list(options.format)
        case "destroy":
            _destroy(options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status. `enter` and `outside` do not return: the command replaces them."""
    options = _parser().parse_args(argv)
    if os.geteuid() != 0:
        print("nodebox: must be run as root", file=sys.stderr)
        return OWN_FAILURE
    try:
        _run(options)
    except FileNotFoundError as error:
        print(f"nodebox: {error}", file=sys.stderr)
        return 127
    except (BoxError, OSError) as error:
        print(f"nodebox: {error}", file=sys.stderr)
        return OWN_FAILURE
    return 0

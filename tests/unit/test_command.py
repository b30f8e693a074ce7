"""Output of programs: bounded lines, and error texts that cannot control a terminal."""

from __future__ import annotations

import logging
import os

import pytest

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed


def test_a_complaint_steers_no_terminal_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    trick = "\\033[2J\\342\\200\\256"
    with caplog.at_level(logging.ERROR), pytest.raises(CommandFailed) as failed:
        command.run(["sh", "-c", f"printf 'bad {trick}name' >&2; exit 3"], timeout=20)
    assert failed.value.stderr == "bad \\x1b[2J\\u202ename"
    assert "\x1b" not in str(failed.value) + caplog.text
    assert "\u202e" not in str(failed.value) + caplog.text


def test_a_line_without_an_end_is_not_kept() -> None:
    argv = ["sh", "-c", "head -c 3000000 /dev/zero"]
    with command.converse(argv, timeout=20) as talk, pytest.raises(CommandFailed, match="does not end"):
        talk.line()


def test_a_program_gets_the_descriptors_that_are_kept_and_no_others() -> None:
    kept, other = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(other, True)
    try:
        argv = ["sh", "-c", f"[ -e /proc/self/fd/{kept} ] && [ ! -e /proc/self/fd/{other} ] && echo right"]
        with command.converse(argv, timeout=20, keep=(kept,)) as talk:
            assert talk.line() == "right"
    finally:
        os.close(kept)
        os.close(other)

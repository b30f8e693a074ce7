"""iperf3 between many pairs at once: all are ready before the first one begins. Returns the rate of each interval."""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from slicemgr.bench.frame import endpoints
from slicemgr.bench.frame.experiment import Json
from slicemgr.drivers import command
from slicemgr.errors import Failed, invalid

_MARGIN = 120.0  # seconds beyond the measurement, for starting and ending programs
_AT_ONCE = 16  # programs that are started together: each start needs an ssh login, which takes time
_FILES, _FILES_EACH = 200, 4  # file descriptors of this process, and of each program that it talks to
_CONNECT = 5000  # milliseconds of the timeout of a connection
_EARLY = 0.5  # seconds by which a sample may begin before the end of the discarded time
_LOOK = 0.5  # seconds between checks whether a client has ended too soon


@dataclass(frozen=True, slots=True)
class Pair:
    """A server and a client of iperf3: the command prefixes that start programs there. port: of the server."""

    name: str
    server: tuple[str, ...]
    client: tuple[str, ...]
    port: int


@dataclass(frozen=True, slots=True)
class How:
    """Parameters of a measurement.

    seconds: the whole duration, of which the first `discard` seconds do not count. interval: seconds of a sample.
    reverse: the server sends. congestion: the congestion control of TCP, by its name in the kernel; "": the default of
    each end.
    """

    address: str
    seconds: int
    discard: int = 0
    interval: int = 10
    streams: int = 1
    reverse: bool = False
    congestion: str = ""

    def whole(self, pairs: int) -> int:
        """Seconds that iperf3 runs with so many pairs.

        Several pairs run one sample longer, which does not count: otherwise the pairs that began first would end first
        and leave their share of the link to the others within the time that counts.
        """
        return self.seconds + (self.interval if pairs > 1 else 0)


def make_room(pairs: int) -> None:
    """Raise the limit of open files of this process for so many pairs. Raises Refused if it may not be raised."""
    need = _FILES + 2 * pairs * _FILES_EACH
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        most = max(0, (hard - _FILES) // (2 * _FILES_EACH))
        message = f"{pairs} pairs take {need} open files, and this process may have {hard}"
        raise invalid("--talkers", message, f"at most {most}, or more by `ulimit -n`")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def server_words(port: int) -> list[str]:
    return ["iperf3", "-s", "-1", "-i", "0", "--forceflush", "-p", str(port)]


def await_listening(server: command.Conversation) -> None:
    """Wait until the server listens. Raises CommandFailed if it ends before."""
    while "listening" not in server.line():
        pass


def client_words(pair: Pair, how: How, whole: int) -> list[str]:
    """The command line of a client that runs for `whole` seconds.

    The discarded time is measured, too, because --omit of iperf3 is limited to one minute.
    """
    words = ["iperf3", "-c", how.address, "-p", str(pair.port), "-t", str(whole)]
    words += ["-i", str(how.interval), "-P", str(how.streams), "--connect-timeout", str(_CONNECT), "-J"]
    words += ["-C", how.congestion] if how.congestion else []
    return words + (["-R"] if how.reverse else [])


def measure(pairs: Sequence[Pair], how: How, progress: Callable[[str, int, int], None]) -> list[Json]:
    """The `figures` of each pair, measured at the same time. Raises Failed, which names the first pair that failed."""
    whole = how.whole(len(pairs))
    limit = whole + _MARGIN + len(pairs)
    with ExitStack() as stack:
        talks: list[command.Conversation] = []

        def start(programs: Sequence[tuple[Pair, tuple[str, ...], list[str]]], what: str) -> list[command.Conversation]:
            mine: list[command.Conversation] = []
            for at in range(0, len(programs), _AT_ONCE):
                some = programs[at : at + _AT_ONCE]
                fresh = [_started(stack, pair, how, words, program, limit) for pair, words, program in some]
                talks.extend(fresh)
                stack.callback(_hang_up, talks)
                for (pair, _, _), talk in zip(some, fresh, strict=True):
                    _expect(pair, how, partial(endpoints.await_ready, talk))
                mine += fresh
                progress(what, len(mine), len(programs))
            return mine

        servers = start([(one, one.server, server_words(one.port)) for one in pairs], "servers")
        for pair, talk in zip(pairs, servers, strict=True):
            _expect(pair, how, partial(_go, talk))
            _expect(pair, how, partial(await_listening, talk))
        clients = start([(one, one.client, client_words(one, how, whole)) for one in pairs], "clients")
        for pair, talk in zip(pairs, clients, strict=True):
            _expect(pair, how, partial(_go, talk))
        _sit_through(clients, whole, progress)
        both = sorted(zip(pairs, clients, strict=True), key=lambda one: not one[1].ended)  # failures first
        found = {pair.name: _figures(pair, talk, how) for pair, talk in both}
        return [found[one.name] for one in pairs]


def _hang_up(talks: Sequence[command.Conversation]) -> None:
    """Close the input of all programs before the exit of each one is awaited."""
    for one in talks:
        one.hang_up()


def _started(
    stack: ExitStack, pair: Pair, how: How, words: Sequence[str], program: Sequence[str], limit: float
) -> command.Conversation:
    try:
        return stack.enter_context(endpoints.started(words, program, limit))
    except command.CommandFailed as error:
        raise _lost(pair, how, str(error)) from error


def _go(talk: command.Conversation) -> None:
    talk.say("go")


def _expect(pair: Pair, how: How, done: Callable[[], None]) -> None:
    try:
        done()
    except command.CommandFailed as error:
        raise _lost(pair, how, str(error)) from error


def _lost(pair: Pair, how: How, why: str) -> Failed:
    hint = f"does the client reach {how.address}, and is iperf3 installed at both ends?"
    return Failed(f"iperf3 to port {pair.port} ({pair.name}): {why}", hint=hint)


def _sit_through(
    clients: Sequence[command.Conversation], whole: int, progress: Callable[[str, int, int], None]
) -> None:
    begun = time.monotonic()
    while (gone := time.monotonic() - begun) < whole and not any(one.ended for one in clients):
        progress("seconds", int(gone), whole)
        time.sleep(min(_LOOK, whole - gone))


def _figures(pair: Pair, talk: command.Conversation, how: How) -> Json:
    said, status = endpoints.rest(talk)
    found = figures(said, how.discard, how.interval, how.seconds)
    if found is None:
        raise _lost(pair, how, complaint(said) or f"no rate in its report, exit status {status}")
    return found


def figures(said: str, discard: int, interval: int, until: float = math.inf) -> Json | None:
    """The figures in the output of `iperf3 -J`; None if it has no counted sample.

    They are the bits per second of each sample and of all data that arrived, the retransmissions, the congestion
    control, and the CPU use in per cent. until: seconds; a sample that begins later does not count. An incomplete last
    sample does not count unless it is the only one.
    """
    try:
        report = json.loads(said)
        sums = [one["sum"] for one in report["intervals"]]
        counted = [one for one in sums if discard - _EARLY < float(one["start"]) < until - _EARLY]
        long = [one for one in counted if float(one["seconds"]) > interval / 2] or counted
        samples = [round(float(one["bits_per_second"])) for one in long]
        end = report["end"]
        arrived = round(float(end["sum_received"]["bits_per_second"]))
    except (ValueError, KeyError, TypeError):
        return None
    return {"samples": samples, "arrived": arrived, **_more(end)} if samples else None


def _more(end: Any) -> Json:
    cpu = end.get("cpu_utilization_percent") or {}
    return {
        "retransmits": (end.get("sum_sent") or {}).get("retransmits"),
        "congestion": end.get("sender_tcp_congestion"),
        "cpu": {name: cpu.get(f"{name}_total") for name in ("host", "remote")},
    }


def complaint(said: str) -> str:
    """The error in the output of `iperf3 -J`; "" if there is none."""
    try:
        return str(json.loads(said).get("error", "")).removeprefix("error - ")
    except (ValueError, AttributeError):
        return ""

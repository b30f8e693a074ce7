"""Use memory in one of several ways. All but `make` print the time at which they began, and a number for each second.

    memory.py make BYTES SEED                   a file in the working directory, and in the page cache
    memory.py read BYTES SECONDS SEED PAUSE     reads pages of that file at random: reads in a second of reading, and
                                                `p99`: microseconds within which 99 % of the reads of each second ended
    memory.py touch BYTES SECONDS SEED PAUSE    reads and writes pages of its own memory at random: likewise
    memory.py stream RATE PHASE...              reads parts of a file without content at random: bytes in each second
    memory.py rewrite RATE PHASE...             writes to parts of its own memory at random, of which it needs ever more
    memory.py update RATE PHASE...              writes to parts of a file at random, which grows
    memory.py stress RATE PHASE...              stress-ng, which writes to memory of its own every second: by how much
                                                it grew
    memory.py hold BYTES SECONDS                anonymous memory, which grows in the first quarter of the time: bytes
    memory.py lock BYTES SECONDS                the same, and the kernel cannot move it to swap

RATE: bytes per second. PHASE: SECONDS BYTES, how much it uses for how long; 0: it does nothing. PAUSE: for how many
times as long as it reads it pauses, so that the speed depends on memory, and hardly on who else uses the processor; 4
if it is omitted.

With `ready` before these words, the program writes the line `"ready"` when it could begin, begins with the next line
that it reads, and writes its numbers line by line, so that they are known if it is killed: the time, then a list for
each second.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import itertools
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Begin = Callable[[], None]  # called when everything is prepared
PAGE = 4096
FILE, STREAM = Path("memory.data"), Path("memory.stream")
STRESS = Path("slicemgr-bench/programs/stress-ng")
_CHUNK = 1 << 20
_AT_ONCE = 64  # reads without a pause
_OFFSETS = 1 << 16
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def make(size: int, seed: int) -> None:
    """Write the file, and read it twice: the kernel keeps what was read again before what was read once."""
    chunk = random.Random(seed).randbytes(_CHUNK)
    with FILE.open("wb") as file:
        for at in range(0, size, _CHUNK):
            file.write(chunk[: size - at])
        os.fsync(file.fileno())
    for _ in range(2):
        with FILE.open("rb", buffering=0) as written:
            while written.read(_CHUNK):
                pass


def read(begin: Begin, size: int, seconds: float, seed: int, pause: float = 4) -> Iterator[tuple[int, float]]:
    with FILE.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # one page for each read
        begin()
        yield from _timed(lambda offset: os.pread(descriptor, PAGE, offset), size, seconds, seed, pause)


def touch(begin: Begin, size: int, seconds: float, seed: int, pause: float = 4) -> Iterator[tuple[int, float]]:
    chunk = random.Random(seed).randbytes(_CHUNK)
    with _own_memory(size) as memory:
        for at in range(0, size, _CHUNK):  # not zeros, which take no room in a compressed swap
            memory[at : at + _CHUNK] = chunk[: size - at]

        def once(offset: int) -> None:
            memory[offset] = memory[offset + 1]

        begin()
        yield from _timed(once, size, seconds, seed, pause)


def _timed(
    once: Callable[[int], object], size: int, seconds: float, seed: int, pause: float
) -> Iterator[tuple[int, float]]:
    """Call `once` with the offsets of pages: how often in each second of it, and its 99th percentile."""
    chooser = random.Random(seed)
    offsets = itertools.cycle([chooser.randrange(size // PAGE) * PAGE for _ in range(_OFFSETS)])
    clock = time.perf_counter_ns
    times: list[int] = []  # nanoseconds

    def some() -> int:
        begun = before = clock()
        for offset in itertools.islice(offsets, _AT_ONCE):
            once(offset)
            after = clock()
            times.append(after - before)
            before = after
        time.sleep(pause * (before - begun) / 1e9)
        return _AT_ONCE

    rate, p99 = 0, 0.0
    for count in each_second(some, seconds):
        if times:  # in a pause for a whole second nothing is known that is newer
            times.sort()
            rate, p99 = int(count / sum(times) * 1e9), times[len(times) * 99 // 100] / 1000
            times.clear()
        yield rate, p99


Phases = list[tuple[int, int]]  # seconds and bytes


def stream(begin: Begin, rate: float, phases: Phases) -> Iterator[int]:
    """No faster than `rate`. The file has holes only: the kernel fills its pages with zeros and reads no disk."""
    STREAM.touch()
    os.truncate(STREAM, max(size for _, size in phases))
    begin()
    with STREAM.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        yield from _at_rate(lambda offset: len(os.pread(descriptor, _CHUNK, offset)), rate, phases)


def rewrite(begin: Begin, rate: float, phases: Phases) -> Iterator[int]:
    """No faster than `rate`. Its memory grows by what it writes, and is then written to again."""
    chunk = random.Random(1).randbytes(_CHUNK)
    begin()
    with _own_memory(max(size for _, size in phases)) as memory:

        def write(offset: int) -> int:
            memory[offset : offset + _CHUNK] = chunk
            return _CHUNK

        def give_back(size: int) -> None:
            kept = max(size, _CHUNK) // PAGE * PAGE
            if kept < len(memory):
                memory.madvise(mmap.MADV_DONTNEED, kept)

        yield from _at_rate(write, rate, phases, give_back)


def update(begin: Begin, rate: float, phases: Phases) -> Iterator[int]:
    """No faster than `rate`."""
    line = b"a line of a file that is updated again and again\n"
    text = line * (_CHUNK // len(line))
    begin()
    with STREAM.open("wb", buffering=0) as file:
        descriptor = file.fileno()
        yield from _at_rate(lambda offset: os.pwrite(descriptor, text, offset), rate, phases)


def stress(begin: Begin, rate: float, phases: Phases) -> Iterator[int]:
    """It uses its memory as fast as it can, whatever `rate` is."""
    begin()
    for seconds, size in phases:
        yield from _stress(seconds, size)


def _stress(seconds: int, size: int) -> Iterator[int]:
    if not size:
        yield from each_second(_nothing, seconds)
        return
    words = [str(STRESS), "--quiet", "--vm", "1", "--vm-bytes", str(size), "--vm-keep", "--vm-hang", "1"]
    with subprocess.Popen([*words, "--timeout", str(seconds)], stdout=subprocess.DEVNULL) as process:
        before = 0

        def some() -> int:
            nonlocal before
            time.sleep(0.1)
            now = _resident(process.pid)
            grown, before = max(0, now - before), now
            return grown

        yield from each_second(some, seconds)
        process.terminate()


def _nothing() -> int:
    time.sleep(0.1)
    return 0


def _resident(process: int) -> int:
    """Bytes of memory of a process and those that it started; pages that they share count more than once."""
    try:
        own = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        return 0
    return own + sum(_resident(int(one)) for one in children)


def _at_rate(
    once: Callable[[int], int], rate: float, phases: Phases, change: Callable[[int], None] = lambda _: None
) -> Iterator[int]:
    """Call `once` with offsets of chunks: the sum of the bytes that it returns in each second.

    change: called with the bytes of a phase when it begins.
    """
    ends = list(itertools.accumulate(seconds for seconds, _ in phases))
    begun, chooser = time.monotonic(), random.Random(1)
    phase, since, done = -1, 0.0, 0

    def some() -> int:
        nonlocal phase, since, done
        now = time.monotonic() - begun
        if (current := min(bisect.bisect(ends, now), len(ends) - 1)) != phase:
            phase, since, done = current, now, 0
            change(phases[phase][1])
        size = phases[phase][1]
        if not size:
            return _nothing()
        if (ahead := done / rate - (now - since)) > 0:
            time.sleep(min(ahead, 0.1))
            return 0
        found = once(chooser.randrange(max(1, size // _CHUNK)) * _CHUNK)
        done += found
        return found

    yield from each_second(some, ends[-1])


def _own_memory(size: int) -> mmap.mmap:
    """Private anonymous memory, as programs use it. That of `mmap` by default is shared: the kernel counts it apart."""
    return mmap.mmap(-1, max(size, _CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def hold(begin: Begin, size: int, seconds: float) -> Iterator[int]:
    return _hold(begin, size, seconds, lambda *_: None)


def lock(begin: Begin, size: int, seconds: float) -> Iterator[int]:
    """Raises OSError if more than RLIMIT_MEMLOCK is locked."""
    libc = ctypes.CDLL(None, use_errno=True)

    def lock_part(memory: mmap.mmap, begin_: int, end: int) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if libc.mlock(ctypes.c_void_p(start + begin_), ctypes.c_size_t(end - begin_)):
            raise OSError(ctypes.get_errno(), "memory cannot be locked")

    return _hold(begin, size, seconds, lock_part)


def _hold(begin: Begin, size: int, seconds: float, keep: Callable[[mmap.mmap, int, int], None]) -> Iterator[int]:
    memory, chunk = _own_memory(size), bytes([1]) * _CHUNK
    begin()
    begun, held = time.monotonic(), 0

    def some() -> int:
        nonlocal held
        due = min(size, int(size * (time.monotonic() - begun) / (seconds / 4))) // PAGE * PAGE
        for at in range(held, due, _CHUNK):
            memory[at : min(at + _CHUNK, due)] = chunk[: due - at]
        if due > held:
            keep(memory, held, due)
            held = due
        time.sleep(0.05)
        return 0

    for _ in each_second(some, seconds):
        yield held


def each_second(some: Callable[[], int], seconds: float) -> Iterator[int]:
    """The sum of what `some` returns in each second. It is called again and again."""
    begun = time.monotonic()
    for second in itertools.count(1):
        if second > seconds:
            return
        count, end = 0, begun + second
        while time.monotonic() < end:
            count += some()
        yield count


_TIMED: dict[str, Callable[..., Iterator[tuple[int, float]]]] = {"read": read, "touch": touch}
_PHASED: dict[str, Callable[[Begin, float, Phases], Iterator[int]]] = {
    one.__name__: one for one in (stream, rewrite, update, stress)
}
_HELD: dict[str, Callable[..., Iterator[int]]] = {one.__name__: one for one in (hold, lock)}


def main(words: list[str]) -> dict[str, object]:
    what, *rest = words
    numbers, started = [int(one) for one in rest], list[float]()
    try:
        if what == "make":
            make(*numbers)
            return {"made": numbers[0]}
        found = list(_seconds(what, numbers, lambda: started.append(time.time())))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return {"missing": "its disk is full"}
    at = started[0]
    if what in _TIMED:
        return {"at": at, **{name: [one[at] for one in found] for at, name in enumerate(("each_second", "p99"))}}
    return {"at": at, "each_second": [one[0] for one in found]}


def converse(words: list[str]) -> None:
    """As `main`, line by line: `ready`, and after an answer when it began, then a list for each second."""
    what, *rest = words
    numbers = [int(one) for one in rest]

    def say(found: object) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    def begin() -> None:
        say("ready")
        sys.stdin.readline()
        say({"at": time.time()})

    for one in _seconds(what, numbers, begin):
        say(one)


def _seconds(what: str, numbers: list[int], begin: Begin) -> Iterator[tuple[float, ...]]:
    if what in _TIMED:
        yield from _TIMED[what](begin, *numbers)
        return
    if what in _PHASED:
        rate, *phases = numbers
        found = _PHASED[what](begin, rate, list(zip(phases[::2], phases[1::2], strict=True)))
    else:
        found = _HELD[what](begin, *numbers)
    for number in found:
        yield (number,)


if __name__ == "__main__":
    if sys.argv[1] == "ready":
        converse(sys.argv[2:])
    else:
        sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")

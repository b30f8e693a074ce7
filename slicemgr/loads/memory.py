"""Use memory in one of four ways. All but `make` print the time at which they began, and a number for each second.

    memory.py make BYTES SEED                  a file in the working directory, and in the page cache
    memory.py read BYTES SECONDS SEED          reads pages of that file at random: reads in a second of reading, and
                                               `p99`: microseconds within which 99 % of the reads of each second ended
    memory.py stream BYTES RATE SECONDS WAIT   reads parts of a file without content at random: bytes in each second
    memory.py hold BYTES SECONDS               anonymous memory, which grows in the first quarter of the time: bytes

RATE: bytes per second. WAIT: seconds before it begins.
"""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PAGE = 4096
FILE, STREAM = Path("memory.data"), Path("memory.stream")
_CHUNK = 1 << 20
_AT_ONCE = 64  # reads without a pause
_PAUSE = 4  # times that the reads took: so the speed depends on memory, and hardly on who else uses the processor
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


def read(size: int, seconds: float, seed: int) -> Iterator[tuple[int, float]]:
    chooser = random.Random(seed)
    offsets = itertools.cycle([chooser.randrange(size // PAGE) * PAGE for _ in range(_OFFSETS)])
    with FILE.open("rb", buffering=0) as file:
        descriptor, clock = file.fileno(), time.perf_counter_ns
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # one page for each read

        times: list[int] = []  # nanoseconds

        def some() -> int:
            begun = before = clock()
            for offset in itertools.islice(offsets, _AT_ONCE):
                os.pread(descriptor, PAGE, offset)
                after = clock()
                times.append(after - before)
                before = after
            time.sleep(_PAUSE * (before - begun) / 1e9)
            return _AT_ONCE

        rate, p99 = 0, 0.0
        for count in each_second(some, seconds):
            if times:  # in a pause for a whole second nothing is known that is newer
                times.sort()
                rate, p99 = int(count / sum(times) * 1e9), times[len(times) * 99 // 100] / 1000
                times.clear()
            yield rate, p99


def stream(size: int, rate: float, seconds: float, wait: float) -> Iterator[int]:
    """No faster than `rate`. The file has holes only: the kernel fills its pages with zeros and reads no disk."""
    time.sleep(wait)
    STREAM.touch()
    os.truncate(STREAM, size)
    with STREAM.open("rb", buffering=0) as file:
        begun, done, chooser = time.monotonic(), 0, random.Random(1)

        def some() -> int:
            nonlocal done
            if (ahead := done / rate - (time.monotonic() - begun)) > 0:
                time.sleep(min(ahead, 0.1))
                return 0
            found = len(os.pread(file.fileno(), _CHUNK, chooser.randrange(max(1, size // _CHUNK)) * _CHUNK))
            done += found
            return found

        yield from each_second(some, seconds)


def hold(size: int, seconds: float) -> Iterator[int]:
    with mmap.mmap(-1, max(size, PAGE)) as memory:
        begun, held = time.monotonic(), 0

        def some() -> int:
            nonlocal held
            due = min(size, int(size * (time.monotonic() - begun) / (seconds / 4)))
            for at in range(held, due, PAGE):
                memory[at] = 1
            held = max(held, due // PAGE * PAGE)
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


_LOADS: dict[str, Callable[..., Iterator[int]]] = {"stream": stream, "hold": hold}


def main(words: list[str]) -> dict[str, object]:
    what, *rest = words
    numbers = [int(one) for one in rest]
    try:
        if what == "make":
            make(*numbers)
            return {"made": numbers[0]}
        at = time.time() + (numbers[3] if what == "stream" else 0)
        if what == "read":
            rates, p99 = zip(*read(*numbers), strict=True)
            return {"at": at, "each_second": rates, "p99": p99}
        return {"at": at, "each_second": list(_LOADS[what](*numbers))}
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        return {"missing": "its disk is full"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")

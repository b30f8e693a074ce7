"""The thesis's disk experiments: one SQLite database of five sizes, and five numbers of small files, read and written.

The places are a sliver of each type, over ssh, and three roots of the same image that the agent makes on the node: a
btrfs snapshot, overlayfs, a plain copy. On the node, the data are in the base of the root, as in the image of a
container. The order of the places differs between repetitions and is derived from the seed; the data are the same in
all places.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.experiment import Json, Missing, Progress, Step, StepOf
from slicemgr.bench.frame.load_hosts import MACHINE, InPlaces, Way, in_words
from slicemgr.client.nodes import IoRequest
from slicemgr.config import parse_size

NAME = "io"
ROOTS = ("snapshot", "overlay", "copy")
PLACES = ("lxc", *ROOTS, "kvm")
SQLITE, FILES = "sqlite", "files"
DATABASES = (151_600, 536_600, 2_600_000, 11_900_000, 111_600_000)  # bytes, as in the thesis
COUNTS = (10, 100, 1000, 10_000, 100_000)
MEASURED = ("read", "write", "sync")
_FILE = 8192  # bytes of disk per small file, including its share of the archive
_LONGEST = 3600.0  # timeout of one step in a sliver, in seconds
_PACE = {"lxc": 1.0, "snapshot": 1.5, "overlay": 1.5, "copy": 3.0, "kvm": 10.0}  # for the estimate of the dry run


@dataclass(frozen=True, slots=True)
class IoParameters:
    """The parameters of a run.

    images: by type; the roots on the node are made from that of lxc. memory, disk: limits of the slivers.
    """

    way: Way
    places: tuple[str, ...] = PLACES
    images: Mapping[str, str] = field(default_factory=dict)
    databases: tuple[int, ...] = DATABASES
    counts: tuple[int, ...] = COUNTS
    memory: str = "2G"
    disk: str = "8G"
    boot: str = "direct"
    repeat: int = 3
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("places", "images", "databases", "counts", "memory", "disk", "boot", "repeat", "seed")
        return {"node": self.way.node, **in_words({name: getattr(self, name) for name in names})}


def label(what: str, size: int) -> str:
    """The size as the thesis writes it."""
    if what == FILES:
        return f"{size:,} files".replace(",", " ")
    return f"{size / 1e6:g} MB" if size >= 1_000_000 else f"{size / 1e3:g} kB"


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement. what: SQLITE or FILES. size: bytes of the database, or number of files."""

    turn: int
    place: str
    what: str
    size: int


def steps(parameters: IoParameters) -> list[StepOf[Load]]:
    """The steps. Example of an id: `2/overlay/sqlite/2600000`, where 2 is the repetition."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for place in random.Random(f"{parameters.seed}/{turn}").sample(parameters.places, len(parameters.places)):
            for what, sizes in ((SQLITE, parameters.databases), (FILES, parameters.counts)):
                for size in sizes:
                    seconds = 1 + _PACE[place] * (size / 3e6 if what == SQLITE else size / 800)
                    title = f"{place}, {'database of ' if what == SQLITE else ''}{label(what, size)}{about}"
                    load = Load(turn, place, what, size)
                    found.append(StepOf(f"{turn}/{place}/{what}/{size}", title, load, seconds, f"{turn}/{place}"))
    return found


class Io(InPlaces):
    """The disk experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: IoParameters) -> None:
        super().__init__(parameters.way, parameters.places)
        self._parameters = parameters
        # The image of the roots on the node: sha256, size in bytes, and whether it contains an operating system.
        self._image: tuple[str, int, bool] = ("", 0, False)

    def steps(self) -> list[StepOf[Load]]:
        return steps(self._parameters)

    def need(self, step: StepOf[Load]) -> guard.Need:
        """Disk for the data three times (created, written, copied) and for a copied root, and memory for a sliver."""
        place, what, size = step.work.place, step.work.what, step.work.size
        data = 3 * size * (_FILE if what == FILES else 1)
        if place in ROOTS:
            return guard.Need(disk=data + (self._image[1] if place == "copy" else 0), pids=4)
        limit = parse_size(self._parameters.memory, "--memory")
        return guard.Need(limit + MACHINE if place == "kvm" else MACHINE, data, 16)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """As in the base class; also raises an error if the image of the roots does not exist."""
        if set(ROOTS) & set(self._parameters.places):
            image = self._client.images.get(self._parameters.images["lxc"])
            self._image = image["sha256"], image["virtual_size"], bool(image["os"])
        return super().prepare(done, todo, progress)

    def run(self, step: StepOf[Load], progress: Progress) -> Json:
        turn, place, what, size = astuple(step.work)
        seed = random.Random(f"{self._parameters.seed}/{turn}/data").randrange(2**31)
        head: Json = {"turn": turn, "place": place, "what": what, "size": size}
        if place in ROOTS:
            if not self._image[2]:
                raise Missing(
                    f"the image {self._parameters.images['lxc']} has no Linux in it, so no root is made of it"
                )
            request: IoRequest = {"root": place, "image": self._image[0], "what": what, "size": size, "seed": seed}
            self._slivers.leave(progress)
            node = self._parameters.way.node
            found = self._on_node.run(lambda: self._client.nodes.measure_io(node, request), ("make", *MEASURED))
            return {**head, **found}
        self._slivers.use(turn, place, progress)
        words = ("make,measure,remove", what, str(size), str(seed))
        return {**head, **self._slivers.run("disk.py", words, MEASURED, _LONGEST)}

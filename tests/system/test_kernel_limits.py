"""Resources that the kernel accounts per user, which one lxc sliver could take from another or from the node."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, parse_lines, tiny_node

from slicemgr.drivers.libvirt.host import Host
from slicemgr.errors import Failed
from slicemgr.model import MIB, Sliver

PROBES = ("probe_memory", "probe_counts")


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("limits"), f"limits-{demo.CLONE}", *PROBES) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def with_probe(slivers: Slivers, probe: str, rc: str, **limits: int | float | None) -> Sliver:
    sliver = slivers.new(**limits)
    files = {"bin/probe": slivers.config.node.pool.parent / probe}
    make_root(slivers.root(sliver), rc=rc, files=files)
    return sliver


def boot(
    slivers: Slivers, probe: str, rc: str, place: Host | None = None, **limits: int | float | None
) -> tuple[Sliver, int]:
    sliver = with_probe(slivers, probe, rc, **limits)
    return sliver, slivers.start(sliver, place)


EXHAUST = """
cat /proc/self/oom_score_adj > /root/inherited
(echo -1 > /proc/self/oom_score_adj) 2> /dev/null && touch /root/lowered
(echo 600 > /proc/self/oom_score_adj && echo 500 > /proc/self/oom_score_adj) && touch /root/raised
touch /root/begun
/bin/probe > /root/found
sleep 1000
"""


def test_a_sliver_that_exhausts_its_memory_goes_on(slivers: Slivers) -> None:
    sliver, init = boot(slivers, "probe_memory", EXHAUST, memory=48 * MIB)
    root = slivers.root(sliver) / "root"
    found = slivers.hypervisor.domain(sliver.id)
    assert found is not None
    scores = [Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in (found.pid, init)]
    assert scores == (["-900", "0"] if _may_lower() else ["0", "500"])
    eventually(lambda: (root / "found").exists() and (root / "found").read_text())
    assert int(parse_lines((root / "found").read_text())["killed"]) >= 10  # two may end at once
    assert (root / "inherited").read_text().strip() == scores[1]
    assert not (root / "lowered").exists()
    assert (root / "raised").exists()
    again = slivers.hypervisor.domain(sliver.id)
    assert again is not None and again.pid == found.pid and Path(f"/proc/{init}").exists()


def _may_lower() -> bool:
    """Whether root of this machine has CAP_SYS_RESOURCE."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")]
    return bool(int(line.split()[1], 16) & 1 << 24)


def test_without_protection_the_kernel_ends_the_sliver_instead(slivers: Slivers, tmp_path: Path) -> None:
    """Of processes with the same score the kernel takes any: now and then it spares those of libvirt."""
    place = slivers.weakened(tmp_path, "    protect_from_oom();\n", "    expose_to_oom(init);\n")

    def ended() -> bool:
        sliver = with_probe(slivers, "probe_memory", EXHAUST, memory=48 * MIB)
        root = slivers.root(sliver) / "root"
        with suppress(Failed):  # the kernel may end it before its init is found
            slivers.start(sliver, place)

        def found() -> str:
            return (root / "found").read_text() if (root / "found").exists() else ""

        eventually(lambda: slivers.hypervisor.domain(sliver.id) is None or found())
        assert (root / "begun").exists()
        return found() == ""

    assert any(ended() for _ in range(5))


TAKE = "/bin/probe {what} > /root/found & sleep 1000"
SIGNALS, QUEUES = 8192, 8  # limits of a sliver: tools/launcher/counts.c; queues of the default size


def counts(slivers: Slivers, what: str, place: Host | None = None) -> dict[str, int]:
    """The numbers of objects that a sliver got, which the kernel counts per user. The sliver keeps them."""
    sliver, _ = boot(slivers, "probe_counts", TAKE.format(what=what), place)
    found = slivers.root(sliver) / "root" / "found"
    eventually(lambda: found.exists() and "done=1" in found.read_text())
    return {name: int(count) for name, count in parse_lines(found.read_text()).items()}


def test_each_sliver_has_its_own_count_of_what_the_kernel_counts_for_users(slivers: Slivers) -> None:
    one, other = counts(slivers, "all"), counts(slivers, "all")
    assert one == other
    assert one["signals"] in (SIGNALS - 1, SIGNALS)
    assert one["queues"] >= QUEUES and one["instances"] >= 100
    # The root of the node still gets its objects: it would get none if any of the three limits were shared.
    libc = ctypes.CDLL(None, use_errno=True)
    instance = libc.inotify_init()
    assert instance >= 0
    os.close(instance)
    queue = libc.mq_open(b"/slicemgr-test", os.O_RDWR | os.O_CREAT, 0o600, None)
    assert queue >= 0
    os.close(queue)
    libc.mq_unlink(b"/slicemgr-test")


def test_limits_of_inotify_are_the_slivers_own(slivers: Slivers) -> None:
    rc = "cd /proc/sys/user; cat max_inotify_instances max_inotify_watches > /root/found; touch /root/done; sleep 1000"
    sliver, init = boot(slivers, "probe_counts", rc)
    root = slivers.root(sliver) / "root"
    eventually((root / "done").exists)
    assert (root / "found").read_text().split() == ["1024", "65536"]
    opened = [str(one.readlink()) for one in Path(f"/proc/{init}/fd").iterdir()]
    assert opened and not [one for one in opened if "sliver-maker" in one]
    assert Path(f"/proc/{init}/limits").read_text().split("Max msgqueue size")[1].split()[:2] == ["819200", "819200"]


def test_a_container_whose_namespace_root_made_does_not_start(slivers: Slivers, tmp_path: Path) -> None:
    place = slivers.weakened(tmp_path, "    load_maker(&launch);\n")
    with pytest.raises(Failed, match="user 0 made the container's user namespace"):
        counts(slivers, "", place)


def test_slivers_whose_namespace_root_makes_take_from_each_other(slivers: Slivers, tmp_path: Path) -> None:
    place = slivers.weakened(tmp_path, "    load_maker(&launch);\n", "    check_maker(launch, user);\n")
    one, other = counts(slivers, "", place), counts(slivers, "", place)
    assert one["signals"] > SIGNALS // 2
    assert other["signals"] < SIGNALS // 2

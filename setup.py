"""With SLICEMGR_PROGRAMS=1 the package has the programs in C that a node needs; everything else is in pyproject.toml.

Without it the wheel is pure Python: clients install it on any system, without a compiler.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools._distutils.ccompiler import CCompiler, new_compiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_py import build_py

WITH_PROGRAMS = os.environ.get("SLICEMGR_PROGRAMS", "") == "1"
DIRECTORY = Path("slicemgr")
FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror"]
PRELOADED = "tools/launcher/preload/maker.c"  # a library that the launcher holds
LIBRARY = "build/sliver-launcher/maker.so"
# The launcher confines a sliver, the view renews its files of lxcfs, the counter measures the processor's, reclaim
# takes memory from groups, balloons and throttle set back what the agent set; the probe, the benchmark of a kernel, the
# init and the listener of ssh run in any sliver, so they are static. By their paths in the package; slivers see
# images/init.
PROGRAMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "libexec/sliver-launcher": (("tools/launcher/*.c",), {"libraries": ["seccomp"]}),
    "libexec/sliver-view": (("tools/view/*.c", "tools/launcher/view.c"), {}),
    "libexec/sliver-counter": (("tools/counter/*.c",), {}),
    "libexec/sliver-reclaim": (("tools/reclaim/*.c",), {}),
    "libexec/sliver-balloons": (("tools/balloons/*.c", "tools/keeper/*.c"), {}),
    "libexec/sliver-throttle": (("tools/throttle/*.c", "tools/keeper/*.c"), {}),
    "libexec/sliver-probe": (("tools/probe/*.c",), {"extra_postargs": ["-static", "-s"]}),
    "libexec/sliver-latency": (("tools/latency/*.c",), {"extra_postargs": ["-static", "-s"]}),
    "images/init/init": (("tools/init/*.c",), {"extra_postargs": ["-static", "-s"]}),
    "images/init/sshd-listener": (("tools/listener/*.c",), {"extra_postargs": ["-static", "-s"]}),
}


class Build(build_py):
    """Build from this tree alone: a file that an earlier build left behind is not part of the package."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildWithPrograms(Build):
    """Compile them beside the Python files (in the source tree when the install is editable)."""

    def run(self) -> None:
        super().run()
        top = Path() if self.editable_mode else Path(self.build_lib)
        compiler = new_compiler()
        customize_compiler(compiler)
        _build_library(compiler)
        macros = [("MAKER_LIBRARY", f'"{LIBRARY}"')]
        for program, (patterns, how) in PROGRAMS.items():
            place = top / DIRECTORY / program
            files = sorted(str(path) for pattern in patterns for path in Path().glob(pattern))
            objects = compiler.compile(files, output_dir=f"build/{place.name}", macros=macros, extra_postargs=FLAGS)
            compiler.link_executable(objects, place.name, output_dir=str(place.parent), **how)


def _build_library(compiler: CCompiler) -> None:
    where = Path(LIBRARY)
    objects = compiler.compile([PRELOADED], output_dir=str(where.parent), extra_postargs=[*FLAGS, "-fPIC"])
    compiler.link_shared_object(objects, where.name, output_dir=str(where.parent), extra_postargs=["-s"])


class PlatformDistribution(Distribution):
    """The wheel holds compiled programs, so it is for one platform."""

    def has_ext_modules(self) -> bool:
        return True


if WITH_PROGRAMS:
    setup(cmdclass={"build_py": BuildWithPrograms}, distclass=PlatformDistribution)
else:
    setup(cmdclass={"build_py": Build})

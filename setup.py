"""Builds the confinement launcher into the package; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_py import build_py

SOURCES = sorted(str(path) for path in Path("tools/launcher").glob("*.c"))
PRELOADED = "tools/launcher/preload/maker.c"  # a library that the launcher holds
BUILD = "build/launcher"
TARGET = Path("slicemgr/libexec/sliver-launcher")


class BuildWithLauncher(build_py):
    """Compile the launcher beside the Python files (in the source tree when the install is editable)."""

    def run(self) -> None:
        super().run()
        directory = TARGET.parent if self.editable_mode else Path(self.build_lib) / TARGET.parent
        compiler = new_compiler()
        customize_compiler(compiler)
        flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
        preloaded = compiler.compile([PRELOADED], output_dir=BUILD, extra_postargs=[*flags, "-fPIC"])
        compiler.link_shared_object(preloaded, "maker.so", output_dir=BUILD, extra_postargs=["-s"])
        macros = [("MAKER_LIBRARY", f'"{BUILD}/maker.so"')]
        objects = compiler.compile(SOURCES, output_dir=BUILD, macros=macros, extra_postargs=flags)
        compiler.link_executable(objects, TARGET.name, output_dir=str(directory), libraries=["seccomp"])


class PlatformDistribution(Distribution):
    """The wheel holds a compiled program, so it is for one platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithLauncher}, distclass=PlatformDistribution)

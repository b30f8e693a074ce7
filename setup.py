"""Builds the confinement launcher into the package; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_py import build_py

SOURCES = sorted(str(path) for path in Path("tools/launcher").glob("*.c"))
TARGET = Path("slicemgr/libexec/sliver-launcher")


class BuildWithLauncher(build_py):
    """Compile the launcher beside the Python files (in the source tree when the install is editable)."""

    def run(self) -> None:
        super().run()
        directory = TARGET.parent if self.editable_mode else Path(self.build_lib) / TARGET.parent
        compiler = new_compiler()
        customize_compiler(compiler)
        objects = compiler.compile(
            SOURCES, output_dir="build/launcher", extra_postargs=["-O2", "-Wall", "-Wextra", "-Werror"]
        )
        compiler.link_executable(objects, TARGET.name, output_dir=str(directory), libraries=["seccomp"])


class PlatformDistribution(Distribution):
    """The wheel holds a compiled program, so it is for one platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithLauncher}, distclass=PlatformDistribution)

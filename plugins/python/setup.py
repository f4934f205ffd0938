# SPDX-License-Identifier: Apache-2.0
"""Puts the compiled library into the wheel; everything else stands in pyproject.toml.

No compiler is needed: CROSSMESH_LIBRARY names a libcrossmesh.so that was built before. Without it the wheel has
no library and finds the installed one through the dynamic loader.
"""

import os
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

LIBRARY = os.environ.get("CROSSMESH_LIBRARY", "")
if LIBRARY and not os.path.isfile(LIBRARY):
    raise SystemExit(f"CROSSMESH_LIBRARY={LIBRARY}: there is no such file")


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        target = os.path.join(self.build_lib, "crossmesh", "lib")
        # A former build in the same folder may have left another one.
        shutil.rmtree(target, ignore_errors=True)
        if LIBRARY:
            os.makedirs(target)
            # By the name under which the others look for it beside them.
            shutil.copyfile(LIBRARY, os.path.join(target, "libcrossmesh.so.1"))
            for name in ("libautopar.so", "libcrossmesh-xla.so", "libnccl-net-crossmesh.so"):
                other = os.path.join(os.path.dirname(LIBRARY), name)
                if os.path.isfile(other):
                    shutil.copyfile(other, os.path.join(target, name))


class PlatformDistribution(Distribution):
    """What belongs to this kind of machine, with the library."""

    def has_ext_modules(self) -> bool:
        return bool(LIBRARY)


class PlatformWheel(bdist_wheel):
    """Any CPython 3 can load the library, but only on this kind of machine."""

    def get_tag(self) -> tuple:
        platform = super().get_tag()[2]
        return "py3", "none", platform if LIBRARY else "any"


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
)

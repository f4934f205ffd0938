# SPDX-License-Identifier: Apache-2.0
"""`pip wheel` makes a wheel with the library in it, which works where nothing else of crossmesh is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PACKAGE = os.path.join(os.environ["SOURCE_DIR"], "plugins", "python")
# pip has nothing to fetch, and does not look whether there is a newer one of itself.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
PROGRAM = """
import crossmesh, os
from crossmesh import _planner, nccl
assert crossmesh.library_path().startswith(os.path.dirname(crossmesh.__file__)), crossmesh.library_path()
layout = crossmesh.Layout(crossmesh.Mesh(1), "R", (64,))
with crossmesh.Job.local() as job:
    plan = crossmesh.Plan(crossmesh.TensorSpec(layout, layout, 8), job.network())
    copy = bytearray(64)
    crossmesh.Reshard(job, plan, bytes(range(64)), copy).run()
    assert bytes(copy) == bytes(range(64))
assert callable(_planner.lib.ap_sharding_create)
os.environ["NCCL_NET_PLUGIN"] = nccl.path()
assert nccl.path().startswith(os.path.dirname(os.path.realpath(crossmesh.__file__))), nccl.path()
assert nccl.Plugin(nccl.path()).name == "crossmesh"
print(crossmesh.__version__)
"""


with open(os.path.join(os.environ["SOURCE_DIR"], "LICENSE"), "rb") as file:
    LICENSE = file.read()


def copy_sources(folder):
    """A copy of the sources, as building leaves files there."""
    sources = os.path.join(folder, "sources")
    shutil.copytree(PACKAGE, sources, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    return sources


def build(folder, library):
    sources = copy_sources(folder)
    environment = {name: value for name, value in os.environ.items() if name != "CROSSMESH_LIBRARY"}
    environment.pop("PYTHONPATH")
    environment.update(OFFLINE)
    if library:
        environment["CROSSMESH_LIBRARY"] = library
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, sources]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    return result, os.path.join(folder, wheels[0]) if wheels else None


class Wheel(unittest.TestCase):
    def test_with_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            result, wheel = build(folder, os.environ["CROSSMESH_LIBRARY"])
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(os.path.basename(wheel), r"^crossmesh-0\.2\.0-py3-none-linux_\w+\.whl$")
            site = os.path.join(folder, "site")
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel]
            subprocess.run(command, check=True, env={**os.environ, **OFFLINE})
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                licenses = [name for name in names if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)]
                self.assertEqual([archive.read(name) for name in licenses], [LICENSE])
            libraries = ("libcrossmesh.so.1", "libautopar.so", "libcrossmesh-xla.so", "libnccl-net-crossmesh.so")
            for name in ("py.typed", "torch/__init__.py", *(f"lib/{library}" for library in libraries)):
                self.assertIn(f"crossmesh/{name}", names)
            # The libraries find each other, and do not look where they were built.
            for library in libraries:
                path = os.path.join(site, "crossmesh", "lib", library)
                told = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
                folders = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", told)
                self.assertEqual(folders, ["$ORIGIN"], library)
            environment = {**os.environ, "PYTHONPATH": site}
            del environment["CROSSMESH_LIBRARY"]
            # Nothing in the current folder or the environment leads to the sources.
            result = subprocess.run(
                [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, cwd=folder
            )
            self.assertEqual((result.returncode, result.stdout), (0, "0.2.0\n"), result.stderr)

    def test_without_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            result, wheel = build(folder, None)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.path.basename(wheel), "crossmesh-0.2.0-py3-none-any.whl")
            with zipfile.ZipFile(wheel) as archive:
                self.assertFalse([name for name in archive.namelist() if ".so" in name])

    def test_sources_have_the_license(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "setup.py", "-q", "sdist", "--formats", "gztar", "-d", folder]
            environment = {name: value for name, value in os.environ.items() if name != "CROSSMESH_LIBRARY"}
            result = subprocess.run(
                command, cwd=copy_sources(folder), capture_output=True, text=True, env=environment
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            with tarfile.open(os.path.join(folder, "crossmesh-0.2.0.tar.gz")) as archive:
                self.assertEqual(archive.extractfile("crossmesh-0.2.0/LICENSE").read(), LICENSE)

    def test_a_library_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            result, wheel = build(folder, "/nowhere/libcrossmesh.so")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("/nowhere/libcrossmesh.so: there is no such file", result.stderr + result.stdout)
            self.assertIsNone(wheel)


if __name__ == "__main__":
    sys.exit(unittest.main())

# SPDX-License-Identifier: Apache-2.0
"""`python -m build` makes a source package and of that a wheel, which works where there is Python and nothing else.

Environment: SOURCE_DIR, BUILD_DIR (what CMake has built goes into the wheel), DEBIAN_CACHE.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import debian_root

SOURCE = os.environ["SOURCE_DIR"]
# What CMake and setuptools read, of what is in the repository.
READ = r"(?:bench|cli_support|cmake|comm|docs|examples|include|packaging|planner|plugins|resharding)/|CMake|LICENSE|pyproject"
CARRIED = ("libucp", "libuct", "libucs", "libhwloc", "libjansson", "libxxhash", "libnettle", "libibverbs")
PROGRAM = """
import crossmesh, os
from crossmesh import _planner, nccl
layout = crossmesh.Layout(crossmesh.Mesh(1), "R", (64,))
with crossmesh.Job.local() as job:
    plan = crossmesh.Plan(crossmesh.TensorSpec(layout, layout, 8), job.network())
    copy = bytearray(64)
    crossmesh.Reshard(job, plan, bytes(range(64)), copy).run()
    assert bytes(copy) == bytes(range(64))
assert callable(_planner.lib.ap_sharding_create)
assert nccl.path().startswith(os.path.dirname(os.path.realpath(crossmesh.__file__))), nccl.path()
assert nccl.Plugin(nccl.path()).name == "crossmesh"
print(crossmesh.__version__, crossmesh.library_path())
"""
TORCHRUN = r"#!/venv/bin/python\nfrom torch.distributed.run import main\nmain()\n"


def read(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read()


def listed(*options):
    command = ["git", "-C", SOURCE, "ls-files", "-z", *options]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout.split("\0")[:-1]


class Made(unittest.TestCase):
    """Made once for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.made = cls.scratch.name
        environment = {**os.environ, "CROSSMESH_BUILD": os.environ["BUILD_DIR"]}
        environment.pop("PYTHONPATH", None)
        # setuptools makes its folders within the sources, where other tests look at the same time.
        sources = os.path.join(cls.made, "sources")
        generated = ["plugins/python/src/crossmesh/_abi.py"]  # by the build, where there is clang
        for name in listed("--cached", "--others", "--exclude-standard") + generated:
            if os.path.exists(os.path.join(SOURCE, name)):
                os.makedirs(os.path.dirname(os.path.join(sources, name)), exist_ok=True)
                shutil.copy2(os.path.join(SOURCE, name), os.path.join(sources, name), follow_symlinks=False)
        command = [sys.executable, "-m", "build", "--no-isolation", "-o", cls.made, sources]
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        cls.version = re.search(r"project\(crossmesh VERSION ([\d.]+)", read("CMakeLists.txt"))[1]
        (cls.wheel,) = (name for name in os.listdir(cls.made) if name.endswith(".whl"))

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()


class Wheel(Made):
    def test_one_version(self):
        self.assertIn(f'\nversion = "{self.version}"\n', read("pyproject.toml"))
        self.assertEqual(re.search(r"## \[([\d.]+)\]", read("CHANGELOG.md"))[1], self.version)

    def test_the_source_package_has_all_that_is_built_of(self):
        wanted = {name for name in listed() if re.match(READ, name)}
        with tarfile.open(os.path.join(self.made, f"crossmesh-{self.version}.tar.gz")) as archive:
            there = {name.partition("/")[2] for name in archive.getnames()}
        self.assertEqual({name for name in wanted - there if os.path.exists(os.path.join(SOURCE, name))}, set())

    def test_what_is_in_it(self):
        self.assertEqual(self.wheel, f"crossmesh-{self.version}-py3-none-manylinux_2_36_{os.uname().machine}.whl")
        with zipfile.ZipFile(os.path.join(self.made, self.wheel)) as archive:
            names = archive.namelist()
            metadata = f"crossmesh-{self.version}.dist-info/"
            self.assertEqual(archive.read(metadata + "licenses/LICENSE").decode(), read("LICENSE"))
            table = archive.read(metadata + "licenses/third-party/README.txt").decode()
        for library in CARRIED:
            self.assertTrue(any(name.startswith(f"crossmesh.libs/{library}-") for name in names), library)
        for path in (name for name in names if name.startswith("crossmesh.libs/") and ".so" in name):
            line = re.search(re.escape(re.sub(r"-[0-9a-f]{8}\.", ".", path.split("/")[-1])) + r": .*, (\S+)\n", table)
            self.assertIsNotNone(line, f"no licence of {path}")
            self.assertIn(metadata + "licenses/third-party/" + line[1], names)
        shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", os.path.join(self.made, self.wheel)],
                               text=True, stdout=subprocess.PIPE, check=True)  # fmt: skip
        self.assertRegex(shown.stdout.replace("\n", " "), r"consistent with the following platform tag: .manylinux_2_3[0-6]_")


class Alone(Made):
    def test_where_there_is_only_python(self):
        import torch

        folders = [(self.made, "/made"), (SOURCE, "/src"), (os.path.dirname(os.path.dirname(torch.__file__)), "/torch")]
        with debian_root.DebianRoot(os.environ["DEBIAN_CACHE"]) as root:
            found = root.run("dpkg -l | grep -E 'ucx|hwloc|jansson|ibverbs|crossmesh|libpopt' || true")
            self.assertEqual(found, "")
            root.run(f"python3 -m venv /venv; /venv/bin/pip install -q --no-index /made/{self.wheel}", folders)
            said = root.run(f"cd /tmp; /venv/bin/python -B - <<'END'\n{PROGRAM}END\n")
            self.assertRegex(said, rf"{self.version} /venv/lib/\S*/crossmesh/lib/libcrossmesh.so.1")
            self.commands(root, folders)
            # PyTorch is the tests' own: the wheel is for whoever has it.
            root.run(f"printf '{TORCHRUN}' >/venv/bin/torchrun; chmod +x /venv/bin/torchrun;"
                     "echo /torch >/venv/lib/$(ls /venv/lib)/site-packages/torch.pth")  # fmt: skip
            said = root.run("cd /tmp; SOURCE_DIR=/src OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo "
                            "/venv/bin/python -B /src/tests/plugins/python/test_tutorial.py tutorial-pytorch.md", folders)  # fmt: skip
            self.assertIn("\nOK\n", said)

    def commands(self, root, folders):
        said = root.run("cd /tmp; export PATH=/venv/bin:$PATH; transport-bench --version; pipeline-bench --version;"
                        "autopar plan --model gpt-1.3b --cluster /src/tests/fixtures/profiles/lab-2x4.json -o plan.json;"
                        "autopar explain plan.json --cluster /src/tests/fixtures/profiles/lab-2x4.json", folders)  # fmt: skip
        self.assertIn("micro-batches", said)
        root.run("/venv/bin/reshard-bench -n 4 --hosts 2 --ranks-per-host 2 --shape 64x64 --src-mesh 2 --dst-mesh 2 "
                 "--src-spec S0R --dst-spec RS0 --validate")  # fmt: skip
        # UCX's modules lie where it looks for them.
        self.assertRegex(root.run("/venv/bin/reshard-bench --check || true"), r"UCX +1\.\S+ offers .*\bcma\b")


if __name__ == "__main__":
    if "Wheel" in sys.argv:
        unittest.main()
    debian_root.main()

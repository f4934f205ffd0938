# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: made by cpack, installed by apt in a Debian 12 that has nothing of crossmesh, used, removed.

Environment: SOURCE_DIR, BUILD_DIR, DEBIAN_CACHE.
"""

import os
import subprocess
import tempfile
import unittest

import debian_root

SOURCE = os.environ["SOURCE_DIR"]
PACKAGES = ["crossmesh-tools", "libcrossmesh-dev", "libcrossmesh1", "python3-crossmesh"]
PYTHON = """
import crossmesh, importlib.metadata
layout = crossmesh.Layout(crossmesh.Mesh(1), "R", (64,))
with crossmesh.Job.local() as job:
    copy = bytearray(64)
    plan = crossmesh.Plan(crossmesh.TensorSpec(layout, layout, 8), job.network())
    crossmesh.Reshard(job, plan, bytes(range(64)), copy).run()
    assert bytes(copy) == bytes(range(64))
from crossmesh import _planner, nccl
assert callable(_planner.lib.ap_sharding_create)
assert nccl.Plugin(nccl.path()).name == "crossmesh"
assert importlib.metadata.version("crossmesh") == crossmesh.__version__
print(crossmesh.library_path(), [e.value for e in importlib.metadata.entry_points(group="vllm.general_plugins")])
"""


class Packages(unittest.TestCase):
    def test_installed_used_removed(self):
        with tempfile.TemporaryDirectory() as made, debian_root.DebianRoot(os.environ["DEBIAN_CACHE"]) as root:
            command = ["cpack", "-G", "DEB", "-B", made, "--config", os.path.join(os.environ["BUILD_DIR"], "CPackConfig.cmake")]
            subprocess.run(command, check=True, stdout=subprocess.PIPE)
            names = sorted(name for name in os.listdir(made) if name.endswith(".deb"))
            self.assertEqual([name.split("_")[0] for name in names], PACKAGES)
            self.assertEqual(root.run("find / -xdev -name '*crossmesh*' -o -xdev -name 'libucp*'"), "")
            self.folders = [(SOURCE, "/src"), (made, "/debs")]
            root.apt_install("/debs/*.deb gcc g++ libc6-dev pkg-config", self.folders)
            self.commands(root)
            self.assertIn("OK", root.run(
                "cd /tmp; SOURCE_DIR=/src INSTALLED=/usr CC=gcc CXX=g++ "
                "python3 -B /src/tests/frame/test_examples.py Examples.test_1_the_tutorial_does_what_it_says", self.folders
            ))  # fmt: skip
            said = root.run(f"cd /tmp; python3 -B - <<'END'\n{PYTHON}END\n")
            self.assertIn("libcrossmesh.so.1 ['crossmesh.adapters.vllm:plugin']", said)
            root.run("dpkg --purge " + " ".join(PACKAGES))
            self.assertEqual(root.run("find /usr -name '*crossmesh*' -o -name 'autopar*' | grep -v __pycache__ || true"), "")

    def commands(self, root):
        """What the packages hold, beside what is run."""
        root.run("reshard-bench --version; reshard-bench --suite alpa-1m --scale 1/64 --dry-run --nic-gbps 10; transport-bench --version")
        root.run("python3 -m json.tool /usr/share/crossmesh/schemas/graph.schema.json")
        for name in PACKAGES:
            root.run(f"test -s /usr/share/doc/{name}/copyright; dpkg --verify {name}")
        root.run("for name in autopar reshard-bench; do test -s /usr/share/man/man1/$name.1; "
                 "test -s /usr/share/bash-completion/completions/$name; done")  # fmt: skip


if __name__ == "__main__":
    debian_root.main()

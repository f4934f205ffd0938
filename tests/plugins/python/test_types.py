# SPDX-License-Identifier: Apache-2.0
"""The annotations: right under mypy's strictest rules, and of use to programs that are checked with them."""

import os
import subprocess
import sys
import tempfile
import unittest

PACKAGE = os.path.join(os.environ["SOURCE_DIR"], "plugins", "python")

# What a checker accepts, and what it has to find wrong: the latter are marked.
PROGRAM = """
import crossmesh

job = crossmesh.Job.from_env(timeout=30.0)
src = crossmesh.Layout(crossmesh.Mesh((2, 4), range(8)), "S01R", (8192, 8192))
plan = crossmesh.Plan([crossmesh.TensorSpec(src, src, 32, "w")], job.network(), strategy="broadcast")
with crossmesh.Reshard(job, plan, bytearray(8), bytearray(8)) as reshard:
    request: crossmesh.Request = reshard.post(timeout=1.0)
    done: bool = request.done
hops: list[crossmesh.Hop] = plan.hops()
picture: str = plan._repr_svg_()
try:
    job.barrier()
except crossmesh.PeerDiedError as error:
    number: int = error.status
crossmesh.Mesh("2x4")  # wrong
crossmesh.Layout(src.mesh, "S01R")  # wrong
plan.bytes = 3  # wrong
hops[0].start + "s"  # wrong
"""


def mypy(*arguments, cwd):
    # Beside the package's own sources, which an installed package would be found as.
    environment = {**os.environ, "MYPYPATH": os.path.join(PACKAGE, "src")}
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.path.join(cwd, "cache"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


class Types(unittest.TestCase):
    def test_the_package_is_right(self):
        with tempfile.TemporaryDirectory() as folder:
            result = mypy("--config-file", os.path.join(os.environ["SOURCE_DIR"], "pyproject.toml"), cwd=folder)
        print(result.stdout)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)

    def test_programs_are_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "program.py"), "w") as file:
                file.write(PROGRAM)
            config = ["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--no-error-summary"]
            result = mypy("--config-file=", *config, "program.py", cwd=folder)
        wrong = [n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
        found = sorted({int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error:" in line})
        self.assertEqual(found, wrong, result.stdout + result.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())

# SPDX-License-Identifier: Apache-2.0
"""Every command that a page shows in a block runs here as it stands, or with its tutorial, or says why not.

test_docs_commands.py [PAGE…]. A block of commands has the language sh, or console: there commands begin with "$ ", and
may be refused. "<!-- not run: WHY -->" on the line before excepts one, "<!-- not run, lines with WORD, WORD: WHY -->" some lines. The blocks of a page run one after the other in a folder
that has cluster.json, a profile of 2 x 4 devices, plan.json, a plan for it, the models of tests/fixtures that pages name,
and the source tree's folders.

Environment: SOURCE_DIR, BUILD_DIR.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = os.environ["SOURCE_DIR"], os.environ["BUILD_DIR"]
FIXTURES = os.path.join(SOURCE, "tests", "fixtures")
COMMAND = (
    r"(?!autopar \w+: )(?:\$ |(?:[A-Z_]+=\S* )*(?:mpirun|srun|torchrun|pip|apt|sudo|cmake|ctest|ninja|cpack|mkdocs|python3|autopar|reshard-bench|"
    r"transport-bench|collective-bench|pipeline-bench|emulated-cluster|(?:\./|bench/|scripts/|tests/)[\w/.-]+) [^:=|])"
)
GIVEN = {
    "model.onnx": "onnx/block-dynamic.onnx", "step.hlo": "hlo/mlp12-b1024-h128.hlo",
    "step.before_optimizations.txt": "hlo/transformer1.before_optimizations.txt", "machine.xml": "hwloc/laptop.xml",
}  # fmt: skip


def blocks(text):
    """Of every fenced block: the line before it, its language, its lines."""
    for before, indent, language, content in re.findall(
        r"([^\n]*)\n([ ]*)```(\w*)\n(.*?)\n[ ]*```", text, re.S
    ):
        yield before, language, [line.removeprefix(indent) for line in content.split("\n")]


def pages():
    names = sorted(glob.glob("docs/*.md", root_dir=SOURCE))
    tutorials = [name for name in names if "/tutorial-" in name] + ["docs/weights.md"]
    return [name for name in names if name not in tutorials] + ["README.md", "CONTRIBUTING.md", "examples/README.md"]


class Commands(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        path = [f"{BUILD}/planner/cli", f"{BUILD}/bench", os.path.dirname(sys.executable), os.environ["PATH"]]
        self.environment = {**os.environ, "PATH": os.pathsep.join(path), "HOME": self.scratch.name}
        plan = f"autopar plan --model gpt-125m --cluster {FIXTURES}/profiles/lab-2x4.json --stages 2 -o plan.json"
        self.run_in(self.scratch.name, plan)

    def run_in(self, folder, script):
        return subprocess.run(
            ["sh", "-ec", script], cwd=folder, env=self.environment, text=True, timeout=250,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def test_what_is_said_to_do_the_like_is_there(self):
        listed = subprocess.run(["ctest", "--test-dir", BUILD, "-N"], text=True, stdout=subprocess.PIPE, check=True).stdout
        for name in pages():
            with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
                for mark in re.findall(r"<!-- not run.*", file.read()):
                    for test in re.findall(r"\b(?:test|guest)_\w+", mark):
                        self.assertRegex(listed, rf": {test}\n", name)

    def folder(self):
        """A fresh one of what commands take."""
        folder = tempfile.mkdtemp(dir=self.scratch.name)
        shutil.copy(f"{FIXTURES}/profiles/lab-2x4.json", f"{folder}/cluster.json")
        shutil.copy(f"{self.scratch.name}/plan.json", folder)
        for name, source in GIVEN.items():
            shutil.copy(f"{FIXTURES}/{source}", f"{folder}/{name}")
        for name in ("bench", "examples", "tests", "scripts"):
            os.symlink(f"{SOURCE}/{name}", f"{folder}/{name}")
        os.mkdir(f"{folder}/build")
        os.symlink(BUILD, f"{folder}/build/release")
        return folder

    def page(self, name):
        with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
            found = list(blocks(file.read()))
        folder, count = self.folder(), 0
        for before, language, lines in found:
            if language not in ("sh", "console"):
                strange = [line for line in lines if language == "" and re.match(COMMAND, line)
                           and not re.match(r"\S+( \w+)?: ", line)]  # what a command says
                self.assertEqual(strange, [], f"{name}: a block of commands has the language sh or console")
                continue
            mark = re.match(r" *<!-- not run(?:, lines with ([^:]+))?", before)
            if mark and not mark[1]:
                continue
            excepted = mark[1].split(", ") if mark else []
            if language == "console":
                scripts = [line[2:] for line in lines if line.startswith("$ ")]
            else:
                scripts = re.sub(r"\\\n", " ", "\n".join(lines)).split("\n")
            for script in scripts:
                if any(word in script for word in excepted):
                    continue
                began = time.monotonic()
                done = self.run_in(folder, script)
                print(f"{time.monotonic() - began:6.1f} s  {name}: {script}", flush=True)
                allowed = (0,) if language == "sh" else (0, 1, 2)
                self.assertIn(done.returncode, allowed, f"{name}: {script}\n{done.stdout}")
                count += 1
        return count

    def test_pages(self):
        total = 0
        for name in [page for page in pages() if page in sys.argv] or pages():
            with self.subTest(name):
                total += self.page(name)
        print(f"{total} commands")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-layers accepts these sources and this build, and names what is planted against the table.

    SOURCE_DIR=… BUILD_DIR=… CC=… test_layers.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, CC = os.environ["SOURCE_DIR"], os.environ["BUILD_DIR"], os.environ["CC"]
FOLDERS = ("include", "comm", "resharding", "planner", "cli_support", "bench", "plugins", "scripts")
OBJECTS = "comm/memory/CMakeFiles/room_comm_memory.dir"


def check(root, build):
    """Exit status, the table, what is wrong."""
    command = [f"{SOURCE}/scripts/check-layers", "--root", root, "--build", build]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


class Layers(unittest.TestCase):
    def setUp(self):
        """A copy of the sources, and a folder whose links are the objects of the build."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root, self.build = f"{scratch.name}/root", f"{scratch.name}/build"
        for folder in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(f"{SOURCE}/{folder}", f"{self.root}/{folder}", ignore=ignored)
            for place, _, names in os.walk(f"{BUILD}/{folder}"):
                copy = os.path.join(self.build, os.path.relpath(place, BUILD))
                for name in names:
                    if name.endswith(".o"):
                        os.makedirs(copy, exist_ok=True)
                        os.symlink(os.path.join(place, name), os.path.join(copy, name))
        for name in os.listdir(SOURCE):
            if name.endswith(".h"):
                shutil.copy(f"{SOURCE}/{name}", self.root)

    def plant(self, name, text):
        """A new source of comm/memory and its object."""
        path = f"{self.root}/comm/memory/{name}.c"
        with open(path, "w") as file:
            file.write(text)
        os.makedirs(f"{self.build}/{OBJECTS}", exist_ok=True)
        subprocess.run([CC, "-c", path, "-o", f"{self.build}/{OBJECTS}/{name}.c.o"], check=True)

    def plant_circle(self, count):
        for i in range(count):
            after = (i + 1) % count
            self.plant(f"planted{i}", f"void planted{after}(void);\nvoid planted{i}(void) {{ planted{after}(); }}\n")

    def test_the_house_is_in_order(self):
        status, table, wrong = check(SOURCE, BUILD)
        print(table)
        self.assertEqual((status, wrong), (0, ""))
        self.assertRegex(table, r"(?m)^comm/transport/ucx +-> comm/base comm/topology")
        self.assertRegex(table, r"links of \d+ objects read")
        self.assertEqual(check(self.root, self.build), (status, table, wrong), "the copy")

    def test_an_include_upwards_is_named(self):
        with open(f"{self.root}/comm/base/text.c", "a") as file:
            file.write('#include "planner/plan.h"\n')
        status, _, wrong = check(self.root, self.build)
        self.assertEqual(status, 1)
        self.assertEqual(wrong, "comm/base/text.c includes planner/plan.h: comm/base may not use planner/plan\n")

    def test_an_include_of_a_private_header_is_named(self):
        with open(f"{self.root}/comm/memory/host.c", "a") as file:
            file.write('#include "comm/base/text.h"\n')
        self.assertIn("comm/memory/host.c includes comm/base/text.h, which is private", check(self.root, self.build)[2])

    def test_a_link_upwards_is_named(self):
        self.plant("planted", "void ap_plan_evaluate(void);\nvoid planted(void) { ap_plan_evaluate(); }\n")
        status, _, wrong = check(self.root, self.build)
        self.assertEqual(status, 1)
        self.assertRegex(wrong, r"^comm/memory/planted.c calls ap_plan_evaluate of planner/.*: comm/memory may not use planner/")

    def test_a_circle_of_four_objects_is_named(self):
        self.plant_circle(3)
        self.assertEqual(check(self.root, self.build)[2], "")
        shutil.rmtree(self.root)
        self.doCleanups()
        self.setUp()
        self.plant_circle(4)
        status, _, wrong = check(self.root, self.build)
        self.assertEqual(status, 1)
        names = " ".join(f"comm/memory/planted{i}.c" for i in range(4))
        self.assertEqual(wrong, f"4 objects use each other in a circle: {names}\n")

    def test_folders_and_what_they_say_are_named(self):
        with open(f"{self.root}/comm/base/README.md", "a") as file:
            file.write("x\n" * 15)
        os.remove(f"{self.root}/comm/memory/README.md")
        for i in range(31):
            open(f"{self.root}/bench/report/planted{i}.h", "w").close()
        with open(f"{self.root}/scripts/layers.txt", "a") as file:
            file.write("scripts - comm/base\n")
        status, _, wrong = check(self.root, self.build)
        self.assertEqual(status, 1)
        self.assertRegex(wrong, r"comm/base/README.md has \d+ lines")
        self.assertIn("comm/memory has no README.md", wrong)
        self.assertRegex(wrong, r"bench/report has \d+ files, more than 30")
        self.assertIn("scripts/README.md differs from layers.txt", wrong)


if __name__ == "__main__":
    sys.exit(unittest.main())

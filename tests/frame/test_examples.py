#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples as a stranger builds them: against an installation, by pkg-config; and docs/tutorial-c.md as it stands.

Environment: SOURCE_DIR, BUILD_DIR, CC, CXX; or INSTALLED, a prefix where crossmesh is, instead of BUILD_DIR.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SOURCE_DIR"]
EXAMPLES = os.path.join(SOURCE, "examples")
INSTALLED = os.environ.get("INSTALLED")
# What has to be there anyhow, and what only looks or ends.
NOT_MOVING = r"xm_(job_env_read|worker_create|last_error|\w+_destroy)"


def read(*path):
    with open(os.path.join(SOURCE, *path)) as file:
        return file.read()


def free_port():
    """One that stays free of others as long as its socket lives; servers set SO_REUSEADDR."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    return probe, probe.getsockname()[1]


def matches(expected, output):
    """Whether a line of the output is the expected one, where "…" is anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return any(re.fullmatch(pattern, line) for line in output.splitlines())


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.home = cls.scratch.name
        # The commands begin in the folder of the sources, with a built tree.
        os.mkdir(os.path.join(cls.home, "build"))
        os.symlink(os.environ.get("BUILD_DIR", "/nowhere"), os.path.join(cls.home, "build", "release"))

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def sh(self, script):
        environment = {**os.environ, "HOME": self.home}
        return subprocess.run(["sh", "-c", script], cwd=self.home, env=environment, text=True, timeout=200,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def test_1_the_tutorial_does_what_it_says(self):
        holder, port = free_port()
        exports, output, commands = "", "", 0
        for line, language, content in re.findall(
            r"([^\n]*)\n\n?```(\w+)\n(.*?)```", read("docs", "tutorial-c.md"), re.DOTALL
        ):
            if language == "c":
                name = re.search(r"`(\w+\.c)`", line)
                self.assertIsNotNone(name, f"no file is named before:\n{content}")
                self.assertEqual(content, read("examples", name[1]).partition("\n")[2], f"examples/{name[1]} differs from the tutorial")
                with open(os.path.join(self.home, name[1]), "w") as file:
                    file.write(content)
            elif language == "sh":
                if INSTALLED and "cmake --install" in content:
                    continue
                content = content.replace("29500", str(port)).replace("$HOME/crossmesh", INSTALLED or "$HOME/crossmesh")
                run = self.sh(exports + content)
                self.assertEqual(run.returncode, 0, f"{content}{run.stdout}")
                output, commands = run.stdout, commands + 1
                exports += "".join(line + "\n" for line in content.splitlines() if line.startswith("export "))
            elif language == "text":
                for expected in content.splitlines():
                    self.assertTrue(matches(expected, output), f"'{expected}' is not in:\n{output}")
        holder.close()
        self.assertGreaterEqual(commands, 7 if INSTALLED else 8)

    def test_2_strict_compilers_accept_them(self):
        prefix = os.path.join(self.home, "crossmesh")
        installed = os.path.join(prefix, "share", "doc", "crossmesh", "examples")
        sources = sorted(name for name in os.listdir(installed) if name != "README.md")
        self.assertEqual(sources, sorted(name for name in os.listdir(EXAMPLES) if name != "README.md"))
        for name in (name for name in sources if not name.endswith(".py")):
            compiler = "$CXX -std=c++17" if name.endswith(".cpp") else "$CC -std=c11 -Wshadow"
            run = self.sh(
                f"export PKG_CONFIG_PATH={shlex.quote(prefix)}/lib/pkgconfig; {compiler} -Wall -Wextra "
                f"-Wpedantic -Werror -o /dev/null {shlex.quote(os.path.join(installed, name))} "
                f"$(pkg-config --cflags --libs {'autopar' if 'ap_' in read('examples', name) else 'crossmesh'})"
            )
            self.assertEqual((run.returncode, run.stdout), (0, ""), name)

    def test_a_tensor_takes_at_most_six_calls(self):
        for name in ("reshard.c", "reshard.cpp"):
            calls = [call for call in re.findall(r"\b(xm_\w+)\(", read("examples", name))
                     if not re.fullmatch(NOT_MOVING, call)]  # fmt: skip
            self.assertIn("xm_reshard_run", calls)
            self.assertLessEqual(len(calls), 6, f"{name}: {calls}")

    def test_only_public_headers_are_included(self):
        for name in os.listdir(EXAMPLES):
            for included in re.findall(r'#include ["<]([^">]*)', read("examples", name)):
                self.assertRegex(included, r"^(crossmesh/|autopar/)?\w+(\.h)?$", name)
            self.assertNotIn('#include "', read("examples", name))


if __name__ == "__main__":
    sys.exit(unittest.main())

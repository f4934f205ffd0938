# SPDX-License-Identifier: Apache-2.0
"""Runs a tutorial as it stands: files are written, commands run, outputs compared.

    test_tutorial.py NAME.md
"""

import collections
import os
import re
import subprocess
import sys
import tempfile
import unittest

import ranks

TUTORIAL = os.path.join(os.environ["SOURCE_DIR"], "docs", sys.argv.pop())


def blocks(text):
    """The code blocks: language, the text of the line before, content."""
    found = re.findall(r"([^\n]*)\n\n?```(\w+)\n(.*?)\n```", text, re.DOTALL)
    return [(language, line, content) for line, language, content in found]


class Tutorial(unittest.TestCase):
    def test_it_does_what_it_says(self):
        with open(TUTORIAL) as file:
            listed = blocks(file.read())
        # Somebody else may use the ports that it names.
        ports = collections.defaultdict(ranks.free_port)
        output, commands = None, 0
        environment = {**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
        environment["PET_LOCAL_ADDR"] = "127.0.0.1"  # for torchrun, where this machine's name is nobody's address
        with tempfile.TemporaryDirectory() as folder:
            for language, line, content in listed:
                content = re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: str(ports[found[0]]), content)
                if language == "python":
                    name = re.search(r"`(\w+\.py)`", line)
                    self.assertIsNotNone(name, f"no file is named before:\n{content}")
                    with open(os.path.join(folder, name.group(1)), "w") as file:
                        file.write(content + "\n")
                elif language == "sh":
                    if "pip " in content:
                        continue  # the environment of the tests has what this would install
                    run = subprocess.run(
                        ["sh", "-c", content], cwd=folder, env=environment, text=True,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500,
                    )  # fmt: skip
                    output, commands = run.stdout, commands + 1
                elif language == "text":
                    for expected in content.splitlines():
                        self.assertIn(expected.strip(), output, f"after {commands} commands")
        self.assertGreaterEqual(commands, 3)


if __name__ == "__main__":
    sys.exit(unittest.main())

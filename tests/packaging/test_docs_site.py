# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation is built without a warning, has every page, and needs nothing from the network."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SOURCE_DIR"]


def mkdocs(config, site):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", site]
    return subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Site(unittest.TestCase):
    def test_it_is_whole(self):
        with tempfile.TemporaryDirectory() as site:
            built = mkdocs(os.path.join(SOURCE, "mkdocs.yml"), site)
            self.assertEqual(built.returncode, 0, built.stdout)
            self.assertNotIn("WARNING", built.stdout)
            pages = {name[:-3] for name in os.listdir(os.path.join(SOURCE, "docs")) if name.endswith(".md")} - {"README"}
            self.assertEqual({name for name in pages if not os.path.exists(f"{site}/{name}.html")}, set())
            with open(f"{site}/search/search_index.json", encoding="utf-8") as file:
                self.assertIn("reshard-bench.html", file.read())
            for name in (*pages, "changelog"):
                with open(f"{site}/{name}.html", encoding="utf-8") as file:
                    text = file.read()
                loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)', text)
                self.assertEqual(loaded, [], f"{name} loads from elsewhere")
                for picture in re.findall(r'<img[^>]*src="([^"]*)"', text):
                    self.assertTrue(os.path.exists(os.path.join(site, picture)), f"{name}: {picture}")

    def test_broken_links_are_errors(self):
        for link in ("nowhere.md", "autopar.md#nowhere", "../nowhere.txt"):
            with tempfile.TemporaryDirectory() as copy:
                for name in ("docs", "packaging", "examples", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml"):
                    subprocess.run(["cp", "-r", os.path.join(SOURCE, name), copy], check=True)
                with open(f"{copy}/mkdocs.yml", encoding="utf-8") as file:
                    short = re.sub(r"\nnav:\n.*", "\n", file.read(), flags=re.S).replace("- mike", "")
                for name in os.listdir(f"{copy}/docs"):
                    if name.endswith(".md") and name != "autopar.md":
                        os.remove(f"{copy}/docs/{name}")
                with open(f"{copy}/mkdocs.yml", "w", encoding="utf-8") as file:
                    file.write(short)
                with open(f"{copy}/docs/index.md", "w", encoding="utf-8") as file:
                    file.write(f"# Here\n\n[there]({link})\n")
                built = mkdocs(f"{copy}/mkdocs.yml", f"{copy}/site")
                self.assertNotEqual(built.returncode, 0)
                self.assertRegex(built.stdout, r"WARNING.*" + re.escape(link))


if __name__ == "__main__":
    sys.exit(unittest.main())

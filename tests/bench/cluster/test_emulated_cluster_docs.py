#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""emulated-cluster --help, emulated-cluster(1) and docs/emulated-cluster.md list the same options; the page is clean."""
import os
import re
import shutil
import subprocess
import sys

COMMANDS = ("up", "down", "exec", "status")
root = os.environ["SOURCE_DIR"]
tool = os.environ["EMULATED_CLUSTER"]
failures = []


def read(path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def section(text, start, end):
    match = re.search(start + r"\n(.*?)(?=" + end + r"|\Z)", text, re.S | re.M)
    return match.group(1) if match else ""


def shown(*arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


manual, page = read("docs/man/emulated-cluster.1"), read("docs/emulated-cluster.md")
listed = shown("--help")
for command in COMMANDS:
    if not re.search(rf"^  {command} ", listed, re.M):
        failures.append(f"--help lacks {command}")
    options = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", shown(command, "--help"), re.M)) - {"help"}
    if "name" not in options:
        failures.append(f"{command} --help does not list --name")
    in_manual = section(manual, rf"^\.Ss emulated-cluster {command}", r"^\.S[sh] ")
    in_page = section(page, rf"^### emulated-cluster {command}", r"^###? ")
    for where, found in (("the manual", set(re.findall(r"^\.It Fl Fl ([a-z-]+)", in_manual, re.M))),
                         ("the page", set(re.findall(r"^\| `--([a-z-]+)", in_page, re.M)))):
        if found != options:
            failures.append(f"{command}: {where} has {sorted(found)}, --help has {sorted(options)}")

if shutil.which("mandoc") is None:
    print("mandoc is not installed: the manual page's syntax was not checked")
else:
    lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", os.path.join(root, "docs/man/emulated-cluster.1")],
                          capture_output=True, text=True, check=False)
    if lint.returncode != 0:
        failures.append("mandoc: " + lint.stdout + lint.stderr)

for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""autopar --help, autopar(1) and docs/autopar.md list the same options, and the manual page is clean."""
import os
import re
import shutil
import subprocess
import sys

COMMANDS = ("probe", "plan", "replan", "shard", "solve", "simulate", "import", "judge", "fit",
            "compare", "explain", "export")
root = os.environ["SOURCE_DIR"]
autopar = os.environ["AUTOPAR"]
failures = []


def section(text, start, end):
    match = re.search(start + r"\n(.*?)(?=" + end + r"|\Z)", text, re.S | re.M)
    return match.group(1) if match else ""


def compare(command, name, found, expected):
    for option in sorted(expected - found):
        failures.append(f"{name} lacks {option} of autopar {command}")
    for option in sorted(found - expected):
        failures.append(f"{name} has {option}, which autopar {command} does not know")


with open(os.path.join(root, "docs/man/autopar.1"), encoding="utf-8") as file:
    manual = file.read()
with open(os.path.join(root, "docs/autopar.md"), encoding="utf-8") as file:
    page = file.read()

listed = subprocess.run([autopar, "--help"], capture_output=True, text=True, check=True).stdout
for command in COMMANDS:
    if not re.search(rf"^  {command} ", listed, re.M):
        failures.append(f"autopar --help lacks {command}")
    text = subprocess.run([autopar, command, "--help"], capture_output=True, text=True,
                          check=True).stdout
    options = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", text, re.M)) - {"help"}
    if not options:
        failures.append(f"autopar {command} --help lists no options")
    in_manual = section(manual, rf"^\.Ss autopar {command}", r"^\.S[sh] ")
    compare(command, "autopar(1)",
            set(re.findall(r"^\.It (?:Fl \w , )?Fl Fl ([a-z-]+)", in_manual, re.M)), options)
    in_page = section(page, rf"^## autopar {command}", r"^## ")
    compare(command, "docs/autopar.md",
            set(re.findall(r"^\| (?:`-\w`, )?`--([a-z-]+)", in_page, re.M)), options)

probe_mpi = os.path.join(os.path.dirname(autopar), "autopar-probe-mpi")
if os.path.exists(probe_mpi):
    text = subprocess.run([probe_mpi, "--help"], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(root, "docs/man/autopar-probe-mpi.1"), encoding="utf-8") as file:
        compare("probe-mpi", "autopar-probe-mpi(1)",
                set(re.findall(r"^\.It (?:Fl \w , )?Fl Fl ([a-z-]+)", file.read(), re.M)),
                set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", text, re.M)))

if shutil.which("mandoc") is None:
    print("mandoc is not installed: the manual page's syntax was not checked")
else:
    lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning",
                           os.path.join(root, "docs/man/autopar.1"),
                           os.path.join(root, "docs/man/autopar-probe-mpi.1")],
                          capture_output=True, text=True, check=False)
    if lint.returncode != 0:
        failures.append("mandoc: " + lint.stdout + lint.stderr)

for failure in failures:
    print("FAIL:", failure)
sys.exit(1 if failures else 0)

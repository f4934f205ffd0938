#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/truth.md: its commands are run and its tables are what they print, and predictions are as near as promised. Skipped
where Sailor's artifact does not lie beside the checkout (SAILOR_DATA names another place)."""
import json
import os
import re
import subprocess
import sys
import tempfile

SOURCE, AUTOPAR = os.environ["SOURCE_DIR"], os.environ["AUTOPAR"]
PLACES = [os.environ.get("SAILOR_DATA", ""), os.path.join(SOURCE, "../shared/data/sailor"),
          os.path.join(SOURCE, "../../shared/data/sailor")]
failures = []


def check(condition, words):
    if not condition:
        failures.append(words)


def main():
    data = next((place for place in PLACES if place and os.path.isdir(os.path.join(place, "plans"))), None)
    if data is None:
        print("skipped: Sailor's artifact is not in ../shared/data/sailor, nor does SAILOR_DATA name it")
        return 77
    with open(os.path.join(SOURCE, "docs/truth.md"), encoding="utf-8") as file:
        page = file.read()
    with tempfile.TemporaryDirectory() as folder:
        names = {"mkdir": "mkdir", "autopar": AUTOPAR, "published_plans.py": os.path.join(SOURCE, "bench/probes/published_plans.py")}
        tables = re.findall(r"```\n(# plan.*?)\n```", page, re.S)
        for command in re.findall(r"^(?:autopar|mkdir|bench/probes/published_plans.py) .*$", page, re.M):
            words = command.replace("../shared/data/sailor", data).replace("tests/", SOURCE + "/tests/").split()
            words[0] = names[os.path.basename(words[0])]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
            check(done.returncode == 0, f"{command}: {done.stderr}")
            if " judge " in command and done.returncode == 0:
                table = tables.pop(0) if tables else ""
                printed = done.stdout.split("\n", 1)[1].strip()
                check(printed == table.strip(), f"{command} prints\n{printed}\nand the page has\n{table}")
        check(not tables, "the page has a table that no command prints")
        done = subprocess.run([AUTOPAR, "judge", os.path.join(folder, "sailor/measured.json"), "--json"],
                              capture_output=True, text=True, timeout=60, check=True)
    errors = json.loads(done.stdout)["errors"]
    check(errors["step"]["rows"] == 15 and errors["memory"]["rows"] == 15, str(errors))
    check(errors["step"]["median"] <= 0.04 and errors["step"]["worst"] <= 0.12, str(errors))
    check(errors["memory"]["median"] <= 0.05 and errors["memory"]["worst"] <= 0.12, str(errors))
    for failure in failures:
        print("FAIL:", failure)
    return 1 if failures else 0


sys.exit(main())

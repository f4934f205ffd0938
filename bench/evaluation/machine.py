# SPDX-License-Identifier: Apache-2.0
"""Where and when an experiment ran: machine.json, an entry for each."""

import datetime
import json
import os
import platform
import subprocess

# Whose versions belong to the results; crossmesh's own and the peers' stand in their documents.
PACKAGES = ["libucx0", "openmpi-bin", "python3-torch"]


def output_of(*command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def describe():
    versions = {name: output_of("dpkg-query", "-W", "-f", "${Version}", name) for name in PACKAGES}
    return {
        "date": datetime.date.today().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "kernel": f"{platform.system()} {platform.release()}",
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "commit": output_of("git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe",
                            "--always", "--dirty"),
        "versions": {name: version for name, version in versions.items() if version},
    }


def record(directory, experiment):
    """Writes this machine and day down for an experiment that has just ended."""
    path = os.path.join(directory, "machine.json")
    entries = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    entries[experiment] = describe()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
        file.write("\n")

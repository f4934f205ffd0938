# SPDX-License-Identifier: Apache-2.0
"""A Debian 12 with Python and nothing of crossmesh, made once by mmdebstrap and unpacked for every use.

Root is needed for it, and once, Debian's archive: 40 MB.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

# In a mount namespace of its own, so that nothing is left mounted: ROOT, SCRIPT, then pairs of a folder and its place.
ENTER = """
root=$1 script=$2; shift 2
mount -t proc proc "$root/proc" && mount -t sysfs sysfs "$root/sys" && mount --rbind /dev "$root/dev" || exit 70
while [ $# -gt 0 ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2" || exit 70; shift 2; done
exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    XM_JOB_SECRET="$XM_JOB_SECRET" chroot "$root" /bin/sh -c "$script"
"""
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--uts"]


def reason_against():
    """Why there can be none, or None."""
    if os.geteuid() != 0 or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode != 0:
        return "a Debian of its own needs root and namespaces"
    return None if shutil.which("mmdebstrap") else "mmdebstrap is not installed"


class DebianRoot:
    """with DebianRoot(cache) as root: root.run(script). The cache is a folder that is kept."""

    def __init__(self, cache):
        self.cache = cache
        self.archives = os.path.join(cache, "archives")
        self.lists = os.path.join(cache, "lists")

    def __enter__(self):
        packed = os.path.join(self.cache, "bookworm.tar")
        for folder in (self.archives, self.lists):
            os.makedirs(os.path.join(folder, "partial"), exist_ok=True)
        if not os.path.exists(packed):
            command = ["mmdebstrap", "-q", "--variant=minbase", "--include=python3,python3-venv", "bookworm", packed + ".new"]
            subprocess.run([*command[:-1], "--format=tar", command[-1]], check=True)
            os.rename(packed + ".new", packed)
        self.place = tempfile.mkdtemp(prefix="crossmesh-debian-")
        subprocess.run(["tar", "-C", self.place, "--exclude=./dev/*", "-xf", packed], check=True)
        for name in ("resolv.conf", "hosts"):
            shutil.copyfile(f"/etc/{name}", f"{self.place}/etc/{name}")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.place)

    def run(self, script, binds=(), timeout=900):
        """The output of a script in it; with folders of this machine at other places there."""
        pairs = [path for pair in binds for path in pair]
        command = [*NAMESPACES, "sh", "-c", ENTER, "sh", self.place, "set -eu\n" + script, *pairs]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout)
        if done.returncode != 0:
            raise AssertionError(f"{script}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def apt_install(self, what, binds=()):
        """Installs packages, from what earlier runs have fetched as far as that goes."""
        caches = [(self.archives, "/var/cache/apt/archives"), (self.lists, "/var/lib/apt/lists")]
        keep = "-o Binary::apt-get::APT::Keep-Downloaded-Packages=true -o APT::Sandbox::User=root"
        install = f"apt-get {keep} install -y --no-install-recommends {what}"
        return self.run(f"{install} || {{ apt-get {keep} update && {install}; }}", [*caches, *binds])



def main():
    """Runs the tests of the program; skipped, with the reason, where there can be no such Debian."""
    reason = reason_against()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()

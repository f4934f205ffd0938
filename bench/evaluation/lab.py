# SPDX-License-Identifier: Apache-2.0
"""An emulated cluster and jobs on it, for evaluate.py."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

GRACE_S = 60  # what the others get when one has failed
LIMIT_S = 3600  # of one job; a job has deadlines of its own long before


class Failed(Exception):
    """A job that ended badly; the text says which and what it printed last."""


class Cluster:
    """`with Cluster(build, hosts=5, nic="1gbit") as cluster:` – gone at the end, whatever happens."""

    def __init__(self, build, hosts, ranks_per_host=4, nic="1gbit", uneven=None, congestion=None):
        self.build = os.path.abspath(build)
        self.tool = self.program("bench/cluster/emulated-cluster", "bench/emulated-cluster")
        self.name = f"rb{os.getpid() % 10000}"
        self.hosts = hosts
        self.ranks_per_host = ranks_per_host
        self.shape = ["--hosts", str(hosts)] + (["--uneven", uneven] if uneven else ["--nic", nic])
        self.shape += ["--congestion", congestion] if congestion else []

    def program(self, *candidates):
        for candidate in candidates:
            path = os.path.join(self.build, candidate)
            if os.path.exists(path):
                return path
        raise Failed(f"{candidates[0]} is not in {self.build}")

    def __enter__(self):
        subprocess.run([self.tool, "up", "--name", self.name, *self.shape], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run([self.tool, "down", "--name", self.name], check=False)

    @property
    def ranks(self):
        return self.hosts * self.ranks_per_host

    def head(self, command, limit=LIMIT_S):
        """A command on the head node, e.g. mpirun."""
        self._finish([subprocess.Popen([self.tool, "exec", "--name", self.name, "head", *command])],
                     command, limit)

    def job(self, command, environment=(), limit=LIMIT_S, output=None, errors=None):
        """A command on every rank, as torchrun would start it; `output` and `errors` are files for what it prints."""
        per_host = self.ranks_per_host
        size = self.hosts * per_host
        port = random.randrange(20000, 30000)
        ranks = []
        for rank in range(size):
            ranks.append(subprocess.Popen(
                [self.tool, "exec", "--name", self.name, str(rank // per_host), "env",
                 f"RANK={rank}", f"WORLD_SIZE={size}", f"LOCAL_RANK={rank % per_host}",
                 "MASTER_ADDR=10.77.0.1", f"MASTER_PORT={port}", *environment, *command],
                stdout=output, stderr=errors))
        self._finish(ranks, command, limit)

    @staticmethod
    def _finish(processes, command, limit):
        end = time.monotonic() + limit
        failed = None
        try:
            while any(process.poll() is None for process in processes):
                if time.monotonic() > end:
                    break
                for index, process in enumerate(processes):
                    if failed is None and process.poll():
                        failed = f"process {index} ended with status {process.returncode}"
                        end = min(end, time.monotonic() + GRACE_S)  # the others may notice
                time.sleep(0.02)
        finally:
            late = [process for process in processes if process.poll() is None]
            for process in late:
                process.kill()
                process.wait()
        for index, process in enumerate(processes):
            if failed is None and process.returncode != 0:
                failed = (f"not finished after {limit} s" if process in late
                          else f"process {index} ended with status {process.returncode}")
        if failed is not None:
            raise Failed(f"{failed}: {' '.join(command)}")


def say(text):
    print(f"\n== {time.strftime('%H:%M:%S')} {text}", flush=True)


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def scratch():
    return tempfile.TemporaryDirectory(prefix="crossmesh-")


def fail(text):
    sys.exit(f"evaluate: {text}")

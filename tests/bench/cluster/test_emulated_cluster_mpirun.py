#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard-bench under Open MPI's mpirun, which starts its daemons on emulated hosts through `exec`."""
import os
import shutil
import sys

import cluster_lab as lab
from cluster_lab import expect

if shutil.which("mpirun") is None:
    print("skipped: mpirun is not installed")
    sys.exit(lab.SKIPPED)


def mpirun_starts_one_daemon_a_host():
    lab.up("--hosts", 2, "--nic", "500mbit")
    name = lab.NAME
    hosts = ["--mca", "plm_rsh_agent", f"{lab.EMULATED_CLUSTER} exec --name {name} --", "--host", f"{name}0:2,{name}1:2"]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # With an address the ranks meet there, without one through PMIx.
    for address in ["-x", "MASTER_ADDR=10.77.0.1"], []:
        result = lab.on("head", "mpirun", *hosts, "-n", 4, *address, os.environ["RESHARD_BENCH"], "--hosts", 2,
                        "--ranks-per-host", 2, "--nic-gbps", 0.5, "--suite", "alpa-1m", "--case", "1m2", "--scale", "1/256",
                        "-i", 2, env=environment)
        expect(result.returncode == 0 and "# Out of bounds values : 0 OK" in result.stdout, address, result)
        for rank in range(4):
            expect(f"# rank    {rank}  host {name}{rank // 2} " in result.stdout, "rank", rank, result.stdout)
        expect("less TCP's headers: 0.9564" in result.stdout, result.stdout)
    failed = lab.on("head", "mpirun", *hosts, "-n", 4, "false", env=environment)
    expect(failed.returncode != 0, failed)


lab.run([mpirun_starts_one_daemon_a_host])

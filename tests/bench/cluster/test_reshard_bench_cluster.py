#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reshard-bench in an emulated cluster: right bytes, rates and hosts as asked for, nothing left after any end."""
import json
import os
import signal
import subprocess

import cluster_lab as lab
from cluster_lab import expect

RESHARD_BENCH = os.environ["RESHARD_BENCH"]
SMALL = ["--hosts", "2", "--ranks-per-host", "2", "--suite", "alpa-1m", "--case", "1m2"]


def bench(*arguments, **more):
    return lab.command(RESHARD_BENCH, *arguments, **more)


def bytes_are_right():
    result = bench(*SMALL, "--nic-gbps", "0.2", "--scale", "1/256", "--validate", "-J", lab.scratch + "/out.json")
    expect(result.returncode == 0 and result.stderr == "", result)
    rows = [line for line in result.stdout.split("\n") if line and line[0] != "#"]
    expect(len(rows) == 1 and rows[0].split()[-1] == "0", rows)
    expect("# emulated cluster: 2 hosts, 1 x 200 Mbit/s a host" in result.stdout, result.stdout)
    with open(lab.scratch + "/out.json", encoding="utf-8") as file:
        document = json.load(file)
    measured = document["results"][0]
    expect([rank["host_name"] for rank in document["ranks"]] == ["host0", "host0", "host1", "host1"], document["ranks"])
    expect(document["env"]["XM_NICS"] == "nic0=200000000" and "XM_HOST" not in document["env"], document["env"])
    network = document["config"]["network"]
    expect(abs(network["nic_bandwidth_Bps"] / (0.2e9 / 8 * 1448 / 1514) - 1) < 1e-9 and network["emulated"], network)
    # The NICs do limit: without them it is a matter of milliseconds. A burst (3 % here) is free.
    expect(measured["time_s"]["min"] > 0.9 * measured["bound_s"], measured)


def the_cluster_is_as_asked_for():
    result = bench("--hosts", 4, "--ranks-per-host", 1, "--uneven", "0.2,0.1", "--racks", 2, "--uplink-gbps", 0.15,
                   "--src-mesh", "2", "--dst-mesh", "2", "--src-spec", "S0", "--dst-spec", "R", "--shape", 100000, "-i", 1,
                   "--json", env=dict(os.environ, XM_HOST="one"))
    expect(result.returncode == 0 and result.stderr == "", result)
    document = json.loads(result.stdout)
    network = document["config"]["network"]
    factor = 1448 / 1514 / 8 * 1e9
    expect(document["config"]["hosts"] == 4, document["config"])
    expect(abs(network["nic_bandwidth_Bps"] - 0.3 * factor) < 1, network)
    expect(abs(network["uplink_bandwidth_Bps"] - 0.15 * factor) < 1, network)
    expect(document["env"]["XM_NICS"] == "nic0=200000000,nic1=100000000", document["env"])
    expect("wrong" in document["results"][0] and document["results"][0]["wrong"] == 0, document["results"])
    for sentence, *more in (("3 hosts do not fill 2 racks evenly", "--hosts", 3, "--nic-gbps", 1, "--racks", 2, "--uplink-gbps", 1),
                            ("a NIC of host 0 has 1000000000000 bit/s", "--hosts", 2, "--nic-gbps", 1000),
                            ("129 hosts with 1 NICs each", "--hosts", 129, "--nic-gbps", 1)):
        refused = bench("--ranks-per-host", 2, "--src-mesh", 2, "--dst-mesh", 2, "--src-spec", "S0", "--dst-spec", "R",
                        "--shape", 8, *more)
        expect(refused.returncode == 2 and sentence in refused.stderr and refused.stderr.count("\n") == 1, refused)


def a_missing_right_is_said():
    """As a user who may make no namespaces: a limit of 0 on them, set inside a user namespace of its own."""
    limited = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\""
    result = lab.command("unshare", "-U", "-r", "sh", "-c", limited, "sh", RESHARD_BENCH, *SMALL, "--nic-gbps", 1)
    expect(result.returncode == 2 and "reshard-bench: " in result.stderr and "namespace" in result.stderr and
           result.stderr.count("\n") == 1, result)


def without_root():
    nobody = lab.as_nobody()
    if nobody is not None:
        result = nobody(RESHARD_BENCH, *SMALL, "--nic-gbps", "0.2", "--scale", "1/256", "-i", 1)
        expect(result.returncode == 0 and "# Out of bounds values : 0 OK" in result.stdout, result)


def start():
    """A long job; its process, the holder of its cluster, and the network namespaces of the cluster."""
    process = subprocess.Popen([RESHARD_BENCH, *SMALL, "--nic-gbps", "0.2", "--scale", "1/64", "-i", "100000"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ready = lab.eventually(lambda: len(lab.children(process.pid)) == 5)
    expect(ready, "not started:", lab.children(process.pid))
    family = lab.children(process.pid)
    family += [pid for parent in family for pid in lab.children(parent)]
    networks = {lab.network_of(pid) for pid in family} - {lab.network_of(os.getpid()), None}
    expect(len(networks) == 3, "namespaces", networks)
    return process, family, networks


def an_interrupted_job_leaves_nothing():
    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        process, family, networks = start()
        process.send_signal(number)
        expect(process.wait(lab.TIMEOUT) == status, number, process.returncode)
        process.stderr.close()
        lab.expect_nothing_left(networks, family, "signal", number)


def a_killed_holder_ends_the_job():
    process, family, networks = start()
    holder = [pid for pid in lab.children(process.pid) if os.path.realpath(f"/proc/{pid}/cwd") == "/"][0]
    os.kill(holder, signal.SIGKILL)
    expect(process.wait(lab.TIMEOUT) == 137, process.returncode)
    expect("was killed by signal 9" in process.stderr.read(), "no sentence")
    process.stderr.close()
    lab.expect_nothing_left(networks, family, "kill -9 of the holder")


lab.run([bytes_are_right, the_cluster_is_as_asked_for, a_missing_right_is_said, without_root, an_interrupted_job_leaves_nothing,
         a_killed_holder_ends_the_job])

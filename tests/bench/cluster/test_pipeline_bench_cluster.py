#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipeline-bench between hosts of an emulated cluster: right bytes, and a step that shows the NICs' speed."""
import json
import os

import cluster_lab as lab
from cluster_lab import expect

AUTOPAR = os.environ["AUTOPAR"]
PIPELINE_BENCH = os.environ["PIPELINE_BENCH"]
GBPS = 0.2
PAYLOAD = 1448 / 1514  # what TCP's and Ethernet's headers leave
MICRO_BATCHES = 4


def plan(name):
    """Two stages on two hosts; a message of 512 KiB takes 22 ms, passes next to nothing."""
    rate = GBPS * 1e9 / 8 * PAYLOAD
    profile = {
        "version": 1, "name": "shaped", "provenance": "assumed, for tests", "hosts": 2, "devices_per_host": 2,
        "device": {"flop_per_s": 1e11, "memory_bytes": 1e10, "memory_bytes_per_s": 1e11}, "nic": {"bytes_per_s": rate},
        "curves": {"self": [[8, 1e-6], [1048576, 1e-4]], "intra_host": [[8, 1e-5], [1048576, 1e-3]],
                   "inter_host": [[8, 1e-4], [1048576, 1e-4 + 1048576 / rate]]},
    }
    cluster, path = lab.scratch + "/profile.json", lab.scratch + "/" + name
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump(profile, file)
    result = lab.command(AUTOPAR, "plan", "--model", "mlp4", "--cluster", cluster, "--global-batch",
                         1024 * MICRO_BATCHES, "--micro-batches", MICRO_BATCHES, "--stages", 2, "--all-devices",
                         "-o", path)
    expect(result.returncode == 0, result.stderr)
    return path


def transfers_take_their_time():
    result = lab.command(PIPELINE_BENCH, plan("plan.json"), "--nic-gbps", GBPS, "-i", 3, "--json")
    expect(result.returncode == 0 and result.stderr == "", result)
    one = json.loads(result.stdout)["results"][0]
    expect(one["wrong"] == 0 and one["submeshes"] == ["1x2", "1x2"], one)
    # The transfers that follow each other cannot be shorter than the NIC lets them, but for a burst that is free.
    expect(one["predicted_free_s"] < 0.5 * one["predicted_s"], one)
    expect(one["step_s"]["min"] > 0.6 * one["predicted_s"], one)


def a_missing_right_is_said():
    limited = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\""
    result = lab.command("unshare", "-U", "-r", "sh", "-c", limited, "sh", PIPELINE_BENCH, plan("refused.json"),
                         "--nic-gbps", 1)
    expect(result.returncode == 2 and "pipeline-bench: " in result.stderr and "namespace" in result.stderr and
           result.stderr.count("\n") == 1, result)


lab.run([transfers_take_their_time, a_missing_right_is_said])

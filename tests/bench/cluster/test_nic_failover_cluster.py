#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NICs that are lost in the middle of reshards in an emulated cluster of two NICs a host: the others take over, and it is said;
and they are used again when they come back."""
import json
import os
import re
import signal
import subprocess
import threading
import time

import cluster_lab as lab
from cluster_lab import expect

RESHARD_BENCH = os.environ["RESHARD_BENCH"]
LIMIT = 60.0 * max(1.0, float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1")))
PORT = "29613"
ITERATIONS = 24
LONG = 120  # iterations: time enough to come back in


def start_job(iterations=ITERATIONS, **more):
    """Two ranks on each of two hosts; 8 MiB go from the first host to the second in each iteration, every byte is checked."""
    processes = []
    for rank in range(4):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="10.77.0.1", MASTER_PORT=PORT,
                           XM_NICS="nic0=200000000,nic1=200000000", XM_TIMEOUT="30", **more)
        processes.append(lab.start_on(rank // 2, RESHARD_BENCH, "--src-mesh", "2", "--dst-mesh", "2", "--src-ranks", "0,1",
                                      "--dst-ranks", "2,3", "--src-spec", "S0R", "--dst-spec", "RS0", "--shape", "1024x2048",
                                      "--dtype", "int32", "--nic-gbps", "0.2", "-w", "1", "-i", str(iterations), env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return processes


def collect(processes):
    """What each process wrote and how it ended. All are read at once: a full pipe would stop its writer."""
    results = [None] * len(processes)

    def read(rank):
        try:
            results[rank] = processes[rank].communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            processes[rank].send_signal(signal.SIGKILL)
            results[rank] = processes[rank].communicate()

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def wait_until_sent(mib, processes, nic="nic"):
    """Until the first host has sent so much more over its NICs, or the job is over."""
    def sent():
        links = json.loads(lab.on(0, "ip", "-s", "-j", "link").stdout)
        return sum(link["stats64"]["tx"]["bytes"] for link in links if link["ifname"].startswith(nic))

    goal = (mib << 20) + (sent() if nic != "nic" else 0)
    while sent() < goal and all(process.poll() is None for process in processes):
        time.sleep(0.02)


def survives(what, mib, strike):
    """Runs a job, strikes in the middle of it, and looks at every rank's end, bytes and sentences. By then every rank has
    connections to its peers: UCX 1.13 may wait for ever for a host that it loses in the middle of making one."""
    lab.up("--hosts", 2, "--nic", "200mbit", "--nics-per-host", 2)
    processes = start_job()
    for line in processes[0].stdout:
        if "%bound" in line:
            break
    wait_until_sent(mib, processes)
    expect(all(process.poll() is None for process in processes), what, "ended before", mib, "MiB")
    struck = time.monotonic()
    strike()
    results = collect(processes)
    print(f"  {what} after {mib} MiB: ended {time.monotonic() - struck:.1f} s later")
    moved = 0
    for rank, (_, errors) in enumerate(results):
        expect(processes[rank].returncode == 0, what, "rank", rank, processes[rank].returncode, errors)
        for line in errors.splitlines():
            print("   ", line.partition(" WARN ")[2] or line)
        said = re.findall(rf"rank {rank}: NIC nic1 towards rank (\d) is lost \(.+\): (\d+) fragments of messages were moved to nic0",
                          errors)
        # Each rank has exchanged messages with both of the other host.
        expect(sorted(peer for peer, _ in said) == (["2", "3"] if rank < 2 else ["0", "1"]), what, "rank", rank, "said", said)
        moved += sum(int(pieces) for _, pieces in said)
    expect("# Out of bounds values : 0 OK" in results[0][0], what, results[0][0])
    expect(moved > 0, what, "moved nothing")
    lab.down()


def run_on(host, *words):
    result = lab.on(host, *words)
    expect(result.returncode == 0, words, result)


def a_link_goes_down():
    survives("nic1 of the receivers down", 16, lambda: run_on(1, "ip", "link", "set", "nic1", "down"))


def an_address_is_removed():
    survives("nic1 of the senders without an address", 14, lambda: run_on(0, "ip", "addr", "flush", "dev", "nic1"))


def everything_is_swallowed():
    """Nobody is told that nothing gets through: neither the kernel nor UCX."""
    survives("nic1 swallows what the receivers send", 20, lambda: run_on(1, "ip", "rule", "add", "blackhole", "to", "10.77.1.1", "pref", "1"))


def it_comes_back():
    """Swallows for as long as it takes to be given up, and then not any more: the NIC carries a good part of what is left."""
    lab.up("--hosts", 2, "--nic", "200mbit", "--nics-per-host", 2)
    processes = start_job(LONG, XM_HEARTBEAT="0.3")
    for line in processes[0].stdout:
        if "%bound" in line:
            break
    wait_until_sent(8, processes, "nic1")
    run_on(1, "ip", "rule", "add", "blackhole", "to", "10.77.1.1", "pref", "1")
    time.sleep(2.0)
    run_on(1, "ip", "rule", "del", "pref", "1")
    expect(all(process.poll() is None for process in processes), "ended before the NIC came back")
    wait_until_sent(24, processes, "nic1")
    expect(all(process.poll() is None for process in processes), "ended before nic1 had sent 24 MiB more")
    for rank, (_, errors) in enumerate(collect(processes)):
        expect(processes[rank].returncode == 0, "rank", rank, processes[rank].returncode, errors)
        expect("is lost" in errors, "rank", rank, "said", errors)
    lab.down()


def one_is_down_from_the_start():
    """Nobody can open it: the ranks whose NIC it is say so once, and all use the other one."""
    lab.up("--hosts", 2, "--nic", "200mbit", "--nics-per-host", 2)
    run_on(1, "ip", "link", "set", "nic1", "down")
    processes = start_job()
    results = collect(processes)
    for rank, (_, errors) in enumerate(results):
        expect(processes[rank].returncode == 0, "rank", rank, processes[rank].returncode, errors)
        said = re.findall(rf"WARN .*rank {rank}: XM_NICS: UCX cannot use the device 'nic1'.*; the other NICs carry on without it",
                          errors)
        expect(len(said) == (1 if rank > 1 else 0), "rank", rank, "said", errors)
        expect("is lost" not in errors, "rank", rank, "said", errors)
    expect("# Out of bounds values : 0 OK" in results[0][0], results[0][0])
    lab.down()


lab.run([a_link_goes_down, an_address_is_removed, everything_is_swallowed, it_comes_back, one_is_down_from_the_start])

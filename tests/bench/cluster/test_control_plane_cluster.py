#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who is alive, in an emulated cluster: no NIC, no reset and no loss of packets ends a job while a path is left, and of a
network that falls apart exactly the majority goes on."""
import os
import re
import signal
import subprocess
import sys
import time

import cluster_lab as lab
from cluster_lab import expect

SURVIVOR = os.environ["SURVIVOR"]
SLOW = max(1.0, float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1")))
PORT = "29617"
HOSTS, PER_HOST = 3, 2
RANKS = HOSTS * PER_HOST

# Classic BPF for tc in direct-action mode: 2 drops a packet, -1 goes on. Kernels without netem have this, and nothing
# else is needed to load it. At 23 an IPv4 packet has its protocol; 4294963256 is where a random number is read.
GO_ON = "6 0 0 4294967295"
EVERYTHING = "1,6 0 0 2"
UDP = f"4,48 0 0 23,21 0 1 17,6 0 0 2,{GO_ON}"


def share(percent):
    return f"4,32 0 0 4294963256,53 1 0 {int(percent * 42949672.95)},6 0 0 2,{GO_ON}"


def run_on(host, *words):
    result = lab.on(host, *words)
    expect(result.returncode == 0, words, result)


def drop(host, nic, direction, program):
    run_on(host, "sh", "-c", f"tc qdisc replace dev nic{nic} clsact && tc filter add dev nic{nic} {direction} bpf da bytecode '{program}'")


def start(seconds, nics):
    """Two ranks on each of three hosts; waits until all have met."""
    lab.up("--hosts", HOSTS, "--nic", "200mbit", "--nics-per-host", nics)
    processes = []
    for rank in range(RANKS):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="10.77.0.1", MASTER_PORT=PORT,
                           XM_NICS=",".join(f"nic{nic}=200000000" for nic in range(nics)), XM_TIMEOUT="30")
        processes.append(lab.start_on(rank // PER_HOST, SURVIVOR, str(seconds), env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE))
    for process in processes:
        line = process.stdout.readline()
        expect(line == "READY\n", "not ready", line)
    return processes


def finish(processes, what, limit):
    """What each rank printed."""
    end, outputs = time.monotonic() + limit * SLOW, []
    for rank, process in enumerate(processes):
        try:
            outputs.append("".join(process.communicate(timeout=max(0.1, end - time.monotonic()))))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            outputs.append("HUNG " + "".join(process.communicate()))
            expect(False, what, "rank", rank, "hangs")
    lab.down()
    return outputs


def goes_on(what, strike, seconds=9, nics=2):
    """Strikes in the middle of a job: all ranks end well, in the group that they began with."""
    processes = start(seconds, nics)
    time.sleep(1)
    strike()
    for rank, output in enumerate(finish(processes, what, seconds + 25)):
        expect(processes[rank].returncode == 0 and "ENDED in generation 0:" in output, what, "rank", rank,
               processes[rank].returncode, output)


def falls_apart(what, strike, out, seconds=14):
    """Strikes a host in the middle of a job: the ranks of the others go on, and nobody else; those say why."""
    processes = start(seconds, 1)
    time.sleep(1)
    strike()
    members = [rank for rank in range(RANKS) if rank not in out]
    for rank, output in enumerate(finish(processes, what, seconds + 30)):
        for line in output.splitlines():
            if rank in (min(out), min(members)):
                print(f"    rank {rank}: {line}")
        if rank in members:
            expect(re.search(f"ENDED in generation [1-9]\\d*: {' '.join(map(str, members))}\n", output), what, "rank", rank, output)
            expect(processes[rank].returncode == 0, what, "rank", rank, processes[rank].returncode, output)
        else:
            expect("OUT: " in output and re.search("the network has split|the others go on without", output), what, "rank", rank, output)
            expect(processes[rank].returncode == 3, what, "rank", rank, processes[rank].returncode, output)


def every_nic_may_be_lost():
    for host in range(2):
        for nic in range(2):
            goes_on(f"nic{nic} of host {host} down", lambda: run_on(host, "ip", "link", "set", f"nic{nic}", "down"))


def the_first_nic_swallows_everything():
    """Neither the kernel nor UCX is told."""
    goes_on("nic0 of host 0 swallows what it gets", lambda: drop(0, 0, "ingress", EVERYTHING))


def datagrams_are_blocked():
    def strike():
        for host in range(HOSTS):
            drop(host, 0, "egress", UDP)
    goes_on("no datagrams", strike, nics=1)


def connections_are_reset():
    def strike():
        for _ in range(3):
            for host in range(HOSTS):
                lab.on(host, "ss", "-K", "dport", "=", PORT)
            time.sleep(0.7)
    goes_on("bootstrap's connections reset", strike, seconds=6)


def links_flap():
    def strike():
        for _ in range(4):
            run_on(1, "sh", "-c", "ip link set nic0 down; sleep 0.5; ip link set nic0 up")
            time.sleep(0.6)
    goes_on("flaps", strike, nics=1)


def packets_are_lost():
    def strike():
        for host in range(HOSTS):
            drop(host, 0, "egress", share(5))
    goes_on("5 % lost", strike, nics=1)


def a_host_hears_nothing():
    falls_apart("host 2 deaf", lambda: drop(2, 0, "ingress", EVERYTHING), [4, 5])


def nobody_hears_a_host():
    falls_apart("host 2 mute", lambda: drop(2, 0, "egress", EVERYTHING), [4, 5])


def a_host_is_cut_off():
    for host in (0, 1):
        falls_apart(f"host {host} cut off", lambda: run_on(host, "ip", "link", "set", "nic0", "down"), [2 * host, 2 * host + 1])


TESTS = [every_nic_may_be_lost, the_first_nic_swallows_everything, datagrams_are_blocked, connections_are_reset, links_flap,
         packets_are_lost, a_host_hears_nothing, nobody_hears_a_host, a_host_is_cut_off]

# All of it takes minutes, so ./test strikes in four ways and leaves the rest to ./test long.
FEW = [the_first_nic_swallows_everything, datagrams_are_blocked, connections_are_reset, a_host_hears_nothing]

if __name__ == "__main__":
    chosen = FEW if int(os.environ.get("TEST_SHARE", "1")) > 1 else TESTS
    lab.run([test for test in TESTS if test.__name__ in sys.argv[1:] or (len(sys.argv) < 2 and test in chosen)])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links and hosts that fail in an emulated cluster: found in 5 s at default settings, by everybody, with a name."""
import json
import os
import re
import signal
import subprocess
import time

import cluster_lab as lab
from cluster_lab import expect

RESHARD_BENCH = os.environ["RESHARD_BENCH"]
LIMIT = 5.0 * max(1.0, float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1")))
PORT = "29611"


def sent_bytes(host):
    """What a host has sent over its NICs."""
    links = json.loads(lab.on(host, "ip", "-s", "-j", "link").stdout)
    return sum(link["stats64"]["tx"]["bytes"] for link in links if link["ifname"].startswith("nic"))


def start_job(source, target, *words):
    """One rank per host; a reshard without end from one rank to another. Waits until bytes move: on a busy machine that may
    be long after the table has begun."""
    processes = []
    for rank in range(3):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="10.77.0.1", MASTER_PORT=PORT)
        processes.append(lab.start_on(rank, *words, RESHARD_BENCH, "--src-mesh", "1", "--dst-mesh", "1", "--src-ranks", source,
                                      "--dst-ranks", target, "--src-spec", "R", "--dst-spec", "R", "--shape", "8000000", "--nic-gbps", "0.2",
                                      "-w", "1", "-i", "100000", env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE))
    for line in processes[0].stdout:
        if "%bound" in line:
            break
    end = time.monotonic() + 12 * LIMIT
    while sent_bytes(source) < 8e6 and time.monotonic() < end and processes[0].poll() is None:
        time.sleep(0.1)
    time.sleep(0.5)
    return processes


class Watch:
    """Seconds since a moment, without those for which the machine held this test itself up: what it takes away from the
    test it takes from the job as well."""
    LOOK = 0.02

    def __init__(self):
        self.last, self.seconds = time.monotonic(), 0.0

    def look(self):
        time.sleep(self.LOOK)
        now = time.monotonic()
        self.seconds += min(now - self.last, 5 * self.LOOK)
        self.last = now
        return self.seconds


def ends(processes, patient=None):
    """Seconds until each process had ended."""
    ended, watch = [None] * len(processes), Watch()
    while None in ended and watch.look() < 6 * LIMIT:
        for rank, process in enumerate(processes):
            if ended[rank] is None and process.poll() is not None:
                ended[rank] = watch.seconds
        if all(ended[rank] is not None for rank in range(len(processes)) if rank != patient):
            break
    return ended


def finish(processes):
    sentences = []
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        sentences.append(process.communicate()[1])
    return sentences


def expect_found(what, processes, lost, blamed):
    """All ranks but `lost` end in time, and rank 0, which speaks for all, names one of the ranks `blamed`."""
    ended = ends(processes, lost)
    sentences = finish(processes)
    seen = [f"{seconds:.1f}" if seconds else "never" for seconds in ended]
    print(f"  {what}: ranks ended after {', '.join(seen)} s")
    for rank, sentence in enumerate(sentences):
        if sentence:
            print(f"    rank {rank}: {sentence.strip()}")
        if rank != lost:
            expect(ended[rank] is not None and ended[rank] < LIMIT + 2.5, what, "rank", rank, "ended after", seen[rank])
            expect(processes[rank].returncode == 1, what, "rank", rank, processes[rank].returncode)
    expect(any(re.search(rf"\brank {name} \(", sentences[0]) for name in blamed), what, sentences)
    return sentences


def a_host_whose_link_goes_down():
    lab.up("--hosts", 3, "--nic", "200mbit")
    processes = start_job("0", "1")
    expect(lab.on(2, "ip", "link", "set", "nic0", "down").returncode == 0, "link down")
    expect_found("link of host 2 down", processes, 2, [2])
    lab.down()


def the_sender_of_bytes_loses_its_link():
    lab.up("--hosts", 3, "--nic", "200mbit")
    processes = start_job("0", "1")
    expect(lab.on(1, "ip", "link", "set", "nic0", "down").returncode == 0, "link down")
    expect_found("link of host 1 down, under load", processes, 1, [1])
    lab.down()


def two_hosts_that_lose_only_each_other():
    lab.up("--hosts", 3, "--nic", "200mbit")
    processes = start_job("1", "2")
    for host, address in ((1, "10.77.0.3"), (2, "10.77.0.2")):
        expect(lab.on(host, "ip", "route", "add", "blackhole", address).returncode == 0, "blackhole")
    expect_found("hosts 1 and 2 cut off from each other", processes, None, [1, 2])
    lab.down()


def a_nic_of_the_transport_alone_goes_down():
    """Heartbeats pass over nic0 all the time: only a probe can tell, where TCP is as patient as it usually is."""
    lab.up("--hosts", 3, "--nic", "200mbit", "--nics-per-host", 2)
    for host in range(3):
        lab.on(host, "sh", "-c", "echo 15 >/proc/sys/net/ipv4/tcp_retries2")
    processes = start_job("1", "2", "env", "XM_NICS=nic1", "UCX_TCP_KEEPIDLE=60s")
    expect(lab.on(2, "ip", "link", "set", "nic1", "down").returncode == 0, "link down")
    sentences = expect_found("the transport's NIC of host 2 down", processes, None, [1, 2])
    expect("lives, but no message has passed" in sentences[0] and "over tcp/nic1" in sentences[0], sentences)
    lab.down()


def lose_link(host, seconds):
    """Takes a host's link down for a while; returns for how long, at most, it was."""
    script = f"date +%s.%N; ip link set nic0 down && sleep {seconds} && ip link set nic0 up && date +%s.%N"
    result = lab.on(host, "sh", "-c", script)
    expect(result.returncode == 0, "link down and up", result)
    began, ended = map(float, result.stdout.split())
    return ended - began


def a_short_loss_is_no_fault():
    """A loss that a busy machine has made a long one is none of this test's: it takes another."""
    for _ in range(10):
        lab.up("--hosts", 3, "--nic", "200mbit")
        processes = start_job("0", "1")
        lost = lose_link(1, 1.0)
        time.sleep(LIMIT)
        living = [process.poll() for process in processes]
        finish(processes)
        lab.down()
        if lost < 1.8:
            break
    expect(lost < 1.8, "no loss was short, the last", lost, "s")
    expect(living == [None] * 3, "somebody gave up after", lost, "s")


lab.run([a_host_whose_link_goes_down, the_sender_of_bytes_loses_its_link, two_hosts_that_lose_only_each_other,
         a_nic_of_the_transport_alone_goes_down, a_short_loss_is_no_fault])
